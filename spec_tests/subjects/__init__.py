"""What can be checked, and how it is loaded. `torch_nn` is shipped; `modules.from_module` adapts an `nn.Module`."""
