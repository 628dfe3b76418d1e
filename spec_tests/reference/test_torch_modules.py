"""What only the PyTorch half has: modules, state dicts, train mode, the compiler, devices, and life without checks."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch

import reference.torch as rt
from reference.config import MINI, TINY, LayerNorm, Learned, ModelConfig, NoPositions
from reference.parameters import init_params, leaves, map_tree, parameter_shapes, tutorial_000_params

SMALL = ModelConfig(
    vocab=7, d_model=6, n_heads=2, n_layers=2, d_ff=10, max_len=9,
    embedding_scale=2.0, attention_bias=True, dropout=0.25, norm=LayerNorm(eps=0.1),
)  # fmt: skip
CONFIGS = {
    "small": SMALL,
    "tied": replace(SMALL, tied_head=True, positions=Learned(), head_bias=False),
    "bare": replace(SMALL, norm=LayerNorm(affine=False), output_projection=False, positions=NoPositions()),
    "post": replace(SMALL, norm_placement="post", final_norm=False, causal=False, activation="relu"),
    "tiny": TINY,
}
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def lively(module: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter, gains and biases too, numbers that show."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def tensors(module: torch.nn.Module) -> dict:
    """Give the module's parameters as the tree that the functions take."""
    return map_tree(torch.as_tensor, rt.export_params(module))


def ids_for(config: ModelConfig, *shape: int) -> torch.Tensor:
    """Draw ids of the config's vocabulary."""
    return torch.randint(0, config.vocab, shape)


def keep_for(config: ModelConfig, *shape: int) -> dict:
    """Draw the whole tree of keep-masks."""

    def draw(width: int) -> torch.Tensor:
        return torch.rand(*shape, width) < 0.5

    d_model, d_ff = config.d_model, config.d_ff
    block = {"attention": d_model, "mlp_hidden": d_ff, "mlp": d_model}
    return {"positions": draw(d_model), "blocks": [map_tree(draw, block) for _ in range(config.n_layers)]}


def without_checks(program: str) -> None:
    """Run a program in a Python without shape checks, in which a warning is an error."""
    environment = {**os.environ, "REFERENCE_SHAPE_CHECKS": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def equal(module_says: torch.Tensor, function_says: torch.Tensor) -> None:
    """Check equality, bit for bit."""
    torch.testing.assert_close(module_says, function_says, rtol=0, atol=0)


class TestModulesAreTheirFunctions:
    """A module computes what its function does with the module's weights."""

    def test_embedding_and_positions(self):
        """TokenEmbedding, LearnedPositions and SinusoidalPositions apply their functions to their tables."""
        ids, x = torch.tensor([[1, 4, 2]]), torch.randn(2, 3, 5)
        module = rt.TokenEmbedding(6, 5, scale=3.0)
        equal(module(ids), rt.token_embedding(ids, module.table, scale=3.0))
        module = rt.LearnedPositions(8, 5)
        equal(module(x, offset=4), rt.add_positions(x, module.table, offset=4))
        module = rt.SinusoidalPositions(8, 5, base=50.0)
        equal(module(x, offset=4), rt.add_positions(x, rt.sinusoidal_positions(8, 5, base=50.0), offset=4))

    @pytest.mark.parametrize("causal", [False, True])
    def test_attention(self, causal):
        """SelfAttention and MultiHeadAttention apply their functions to their weights."""
        x, context = torch.randn(2, 3, 6), torch.randn(2, 5, 6)
        mask = torch.rand(2, 3, 3) < 0.5
        one = lively(rt.SelfAttention(6, d_k=4, d_v=5, causal=causal))
        equal(one(x, mask=mask), rt.self_attention(x, one.w_q, one.w_k, one.w_v, mask=mask, causal=causal))
        many = lively(rt.MultiHeadAttention(6, 3, bias=True, causal=causal))
        weights = tensors(many)
        weights.pop("blocks")
        expected = rt.multi_head_attention(x, **weights, n_heads=3, context=context, causal=causal)
        equal(many(x, context=context), expected)

    @pytest.mark.parametrize("variant", ["standard", "std_plus_eps", "unbiased_std_plus_eps"])
    def test_layer_norm(self, variant):
        """LayerNorm applies layer_norm with its gain, bias, eps and variant; it starts at gain 1 and bias 0."""
        x = torch.randn(4, 6)
        module = rt.LayerNorm(6, eps=0.1, variant=variant)
        equal(module(x), rt.layer_norm(x, torch.ones(6), torch.zeros(6), eps=0.1, variant=variant))
        lively(module)
        equal(module(x), rt.layer_norm(x, module.gamma, module.beta, eps=0.1, variant=variant))

    @pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
    def test_feed_forward(self, activation):
        """FeedForward applies feed_forward with its activation and rate, and the keep-mask that it is given."""
        x, keep = torch.randn(2, 3, 6), torch.rand(2, 3, 10) < 0.5
        mlp = lively(rt.FeedForward(6, 10, activation=activation, rate=0.25))
        weights = (mlp.w_1, mlp.b_1, mlp.w_2, mlp.b_2)
        equal(mlp(x, keep=keep), rt.feed_forward(x, *weights, activation=activation, keep=keep, rate=0.25))

    @configs
    def test_block(self, config):
        """TransformerBlock applies transformer_block, with mask and keep-masks."""
        x, mask = torch.randn(2, 3, config.d_model), torch.rand(2, 3, 3) < 0.5
        keep = keep_for(config, 2, 3)["blocks"][0]
        model = lively(rt.Transformer(config))
        expected = rt.transformer_block(x, tensors(model)["blocks"][0], config, mask=mask, keep=keep)
        equal(model.blocks[0](x, mask=mask, keep=keep), expected)

    @configs
    def test_transformer(self, config):
        """Transformer applies transformer, in train mode too when it is given the keep-masks."""
        ids, keep = ids_for(config, 2, 5), keep_for(config, 2, 5)
        mask = torch.rand(2, 5, 5) < 0.5
        model = lively(rt.Transformer(config))
        params = tensors(model)
        equal(model(ids, keep=keep, mask=mask), rt.transformer(ids, params, config, keep=keep, mask=mask))
        equal(model.eval()(ids), rt.transformer(ids, params, config))


class TestParameters:
    """The state dict is the parameter tree under another name."""

    @configs
    def test_state_dict_has_the_paths_of_the_tree(self, config):
        """The keys and shapes of the state dict are those of the parameter tree."""
        state = {path: tuple(tensor.shape) for path, tensor in rt.Transformer(config).state_dict().items()}
        assert state == dict(leaves(parameter_shapes(config)))

    @configs
    def test_load_then_export_is_the_identity(self, config):
        """What load_params puts in, export_params gives back, bit for bit."""
        model = rt.Transformer(config, dtype=torch.float64)
        params = init_params(config, seed=3)
        rt.load_params(model, params)
        exported = rt.export_params(model)
        assert dict(leaves(exported)).keys() == dict(leaves(params)).keys()
        map_tree(np.testing.assert_array_equal, params, exported)

    def test_exported_arrays_are_copies(self):
        """Writing into an exported tree leaves the module as it was."""
        model = rt.Transformer(TINY)
        before = model.token_embedding.table.clone()
        rt.export_params(model)["token_embedding"]["table"][:] = 7
        equal(model.token_embedding.table, before)

    def test_wrong_trees_are_refused(self):
        """A missing part is a ValueError, another shape a TypeError, each naming the path."""
        model = rt.Transformer(SMALL)
        params = init_params(SMALL, seed=0)
        bias = params["output_head"].pop("b")
        with pytest.raises(ValueError, match=r"output_head\.b"):
            rt.load_params(model, params)
        params["output_head"]["b"] = bias[:1]
        with pytest.raises(TypeError, match=r"output_head\.b"):
            rt.load_params(model, params)
        with pytest.raises(ValueError, match="meta"):
            rt.load_params(rt.Transformer(SMALL, device="meta"), init_params(SMALL, seed=0))

    def test_tied_head_follows_the_table(self):
        """A tied head has no weights of its own: it is the transpose of the embedding table, gradients included."""
        config = replace(CONFIGS["tied"], n_layers=0, positions=NoPositions(), final_norm=False)
        model = lively(rt.Transformer(config, dtype=torch.float64)).eval()
        ids = ids_for(config, 4)
        table = model.token_embedding.table
        equal(model(ids), 2.0 * table[ids] @ table.mT)
        model(ids).sum().backward()
        assert (table.grad != 0).all()

    @configs
    def test_parameter_count(self, config):
        """parameter_count is the sum of the sizes in the tree."""
        assert rt.parameter_count(config) == sum(np.prod(shape) for _, shape in leaves(parameter_shapes(config)))

    def test_the_two_systems(self):
        """TINY has 1,658 numbers and MINI 857,088; the weights of tutorial 000 predict 5, 5, 4, 3."""
        assert (rt.parameter_count(TINY), rt.parameter_count(MINI)) == (1_658, 857_088)
        model = rt.Transformer(TINY, dtype=torch.float64)
        rt.load_params(model, tutorial_000_params())
        assert model(torch.tensor([3, 8, 2, 6])).argmax(-1).tolist() == [5, 5, 4, 3]

    def test_initial_weights(self):
        """Weights start at deviation 0.02, those that write into the stream at 0.02 / sqrt(2 n_layers), biases at 0.

        Each deviation rests on at least 16,384 numbers: being 5 % off is 9 standard errors (false alarm below 1e-15).
        """
        for path, tensor in rt.Transformer(MINI).state_dict().items():
            name = path.rsplit(".", 1)[-1]
            if name == "gamma":
                assert (tensor == 1).all(), path
            elif name.startswith("b"):
                assert (tensor == 0).all(), path
            else:
                expected = 0.02 / np.sqrt(8) if name in ("w_o", "w_2") else 0.02
                assert tensor.std().item() == pytest.approx(expected, rel=0.05), path


class TestDropout:
    """A module draws what its function is given."""

    def test_train_mode_draws_and_eval_mode_does_not(self):
        """In train mode two passes differ; in eval mode they are the same, and those of a model without dropout."""
        model = lively(rt.Transformer(SMALL))
        ids = ids_for(SMALL, 2, 9)
        assert not torch.equal(model(ids), model(ids))
        model.eval()
        equal(model(ids), model(ids))
        equal(model(ids), rt.transformer(ids, tensors(model), replace(SMALL, dropout=0.0)))

    def test_the_seed_repeats_the_draws(self):
        """After the same torch.manual_seed, a model in train mode gives the same result."""
        model, ids = lively(rt.Transformer(SMALL)), ids_for(SMALL, 2, 9)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            first = model(ids)
            torch.manual_seed(1)
            equal(model(ids), first)

    @pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
    def test_keep_masks_keep_the_share_that_they_should(self, rate):
        """An entry is kept with probability 1 - rate, and what is kept in one place says nothing about the next.

        Over n = 400,000 entries a share is held to 6 standard errors (false alarm below 2e-9 each).
        """
        keep = rt.mlp.draw_keep((400, 1000), rate=rate, device=torch.device("cpu")).double()
        assert keep.mean().item() == pytest.approx(1 - rate, abs=6 * np.sqrt(rate * (1 - rate) / keep.numel()))
        for step in (1, 2, 3, 4, 1000):
            centred = keep.flatten() - (1 - rate)
            together = (centred[:-step] * centred[step:]).mean().item()
            assert abs(together) < 6 * rate * (1 - rate) / np.sqrt(keep.numel() - step)

    @pytest.mark.parametrize("site", ["positions", "attention", "mlp_hidden", "mlp"])
    def test_each_site_acts(self, site):
        """Closing the masks of one site changes the logits."""
        model, ids = lively(rt.Transformer(SMALL)), ids_for(SMALL, 2, 5)
        open_ = map_tree(torch.ones_like, keep_for(SMALL, 2, 5))
        closed = map_tree(torch.clone, open_)
        (closed if site == "positions" else closed["blocks"][1])[site][:] = False
        assert not torch.allclose(model(ids, keep=open_), model(ids, keep=closed))


class TestDtypesAndDevices:
    """A model stays in its dtype and on its device."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
    @configs
    def test_dtype_comes_out_as_it_went_in(self, config, dtype):
        """Logits, loss and gradients of a model have the model's dtype, in train mode too."""
        model = rt.Transformer(config, dtype=dtype)
        ids = ids_for(config, 2, 5)
        logits = model(ids)
        loss = rt.cross_entropy(logits, ids)
        loss.backward()
        found = {logits.dtype, loss.dtype, *(parameter.grad.dtype for parameter in model.parameters())}
        assert found == {dtype}
        assert {tensor.dtype for tensor in model.buffers()} <= {dtype}

    def test_positions_are_rounded_once(self):
        """A model cast to another dtype has the table of that dtype, not one that was rounded twice."""
        module = rt.SinusoidalPositions(200, 6).to(torch.float64)
        equal(module.table, rt.sinusoidal_positions(200, 6, dtype=torch.float64))

    def test_a_model_without_storage_comes_to_life(self):
        """Built on meta and given storage and parameters later, a model is the same, positions included."""
        params = init_params(SMALL, seed=2)
        late = rt.Transformer(SMALL, device="meta").to_empty(device="cpu").eval()
        early = rt.Transformer(SMALL).eval()
        rt.load_params(late, params)
        rt.load_params(early, params)
        ids = ids_for(SMALL, 2, 5)
        equal(late(ids), early(ids))

    @configs
    def test_any_device(self, config):
        """A model runs where its parameters are: on meta, nothing is made on the CPU or read."""
        model = rt.Transformer(config, device="meta")
        ids = torch.zeros(2, 5, dtype=torch.long, device="meta")
        mask = torch.ones(5, 5, dtype=torch.bool, device="meta")
        logits = model.eval()(ids, mask=mask)
        assert logits.is_meta
        assert logits.shape == (2, 5, config.vocab)
        rt.cross_entropy(logits, ids).backward()


class TestAttentionNumbers:
    """What is hidden stays hidden, from gradients too."""

    @pytest.mark.parametrize("restriction", ["mask", "causal", "both"])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_hidden_values_have_no_gradients_to_spoil(self, restriction, bad):
        """A broken key and value that no query sees changes neither the result nor one gradient."""
        q, k, v = (torch.randn(2, seq, width, dtype=torch.float64) for seq, width in ((3, 4), (5, 4), (5, 6)))
        mask = torch.rand(2, 3, 5) < 0.7
        mask[..., 2] = False
        mask[0, 1] = False
        where = 2
        if restriction == "causal":
            q, k, v, mask = k, k.clone(), v, None  # square; the last key is seen by the last query alone
            where = 4
        out = []
        for value in (1.0, bad):
            dirty = [tensor.clone() for tensor in (q, k, v)]
            dirty[1][:, where], dirty[2][:, where] = value, value
            inputs = [tensor.requires_grad_() for tensor in dirty]
            y = rt.scaled_dot_product_attention(*inputs, mask=mask, causal=restriction != "mask")
            y = y[:, :-1] if restriction == "causal" else y
            grads = torch.autograd.grad(y.square().sum(), inputs)
            seen = [grads[0][:, : y.shape[1]], *(torch.cat((g[:, :where], g[:, where + 1 :]), 1) for g in grads[1:])]
            out.append([y, *seen])
        for clean, spoiled in zip(*out, strict=True):
            torch.testing.assert_close(spoiled, clean, rtol=0, atol=1e-12)

    def test_a_query_that_sees_nothing_spoils_no_gradient(self):
        """A query with no key allowed may be NaN: its result is 0 and every gradient is finite."""
        q, k, v = (torch.randn(seq, 4, dtype=torch.float64) for seq in (3, 5, 5))
        q[1] = float("nan")
        mask = torch.ones(3, 5, dtype=torch.bool)
        mask[1] = False
        for attend in (
            lambda q, k, v: rt.scaled_dot_product_attention(q, k, v, mask=mask),
            lambda q, k, v: rt.attention_weights(q, k, mask=mask) @ v,
        ):
            inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
            y = attend(*inputs)
            assert (y[1] == 0).all()
            assert all(grad.isfinite().all() for grad in torch.autograd.grad(y.square().sum(), inputs))


class TestGradientsAtCorners:
    """Where a formula has no derivative, the gradient is the documented one and not NaN."""

    @pytest.mark.parametrize("variant", ["std_plus_eps", "unbiased_std_plus_eps"])
    def test_constant_row(self, variant):
        """On a constant row the gradient of layer_norm is (g - mean g) / eps: the deviation does not move."""
        x = torch.full((6,), 3.0, dtype=torch.float64, requires_grad=True)
        g = torch.randn(6, dtype=torch.float64)
        rt.layer_norm(x, None, None, eps=0.1, variant=variant).backward(g)
        torch.testing.assert_close(x.grad, (g - g.mean()) / 0.1, rtol=0, atol=1e-12)

    def test_relu_at_zero(self):
        """relu'(0) = 0."""
        x = torch.zeros(3, requires_grad=True)
        rt.relu(x).sum().backward()
        equal(x.grad, torch.zeros(3))


class TestWithoutChecks:
    """Production: no shape checks, and the compiler."""

    def test_production_functions_are_plain_and_still_careful(self):
        """With checks off a function is the one in its file, unwrapped, and refuses what would spread silently."""
        without_checks("""
            from pathlib import Path
            import types
            import pytest
            import torch
            import reference.torch as rt

            functions = [getattr(rt, name) for name in rt.__all__ if name[0].islower()]
            functions = [function for function in functions if callable(function)]
            assert len(functions) >= 25
            for function in functions:
                assert type(function) is types.FunctionType, function
                assert not hasattr(function, "__wrapped__"), function
                assert Path(function.__code__.co_filename).parent == Path(rt.__file__).parent, function
            assert Path(rt.layer_norm.__code__.co_filename).name == "norms.py"

            x, one, boolean = torch.randn(2, 3, 4), torch.randn(1), torch.ones(3, 1, dtype=torch.bool)
            w, b = torch.randn(4, 4), torch.randn(4)
            refused = {
                "gamma": lambda: rt.layer_norm(x, one, None),
                "beta": lambda: rt.layer_norm(x, None, one),
                "b_1": lambda: rt.feed_forward(x, w, one, w, b),
                "b_2": lambda: rt.feed_forward(x, w, b, w, one),
                "keep ff": lambda: rt.feed_forward(x, w, b, w, b, keep=torch.ones(2, 1, 4, dtype=torch.bool)),
                "b_q": lambda: rt.multi_head_attention(x, w, w, w, w, n_heads=2, b_q=one),
                "b_o": lambda: rt.multi_head_attention(x, w, w, w, w, n_heads=2, b_o=one),
                "batched w": lambda: rt.multi_head_attention(x, w.expand(2, 4, 4), w, w, w, n_heads=2),
                "context": lambda: rt.multi_head_attention(x, w, w, w, w, n_heads=2, context=x[:1]),
                "mask": lambda: rt.scaled_dot_product_attention(x, x, x, mask=boolean),
                "mask mha": lambda: rt.multi_head_attention(x, w, w, w, w, n_heads=2, mask=boolean),
                "float mask": lambda: rt.scaled_dot_product_attention(x, x, x, mask=torch.ones(3, 3)),
                "more batch": lambda: rt.attention_weights(x[0], x[0], mask=torch.ones(2, 3, 3, dtype=torch.bool)),
                "bias": lambda: rt.scaled_dot_product_attention(x, x, x, bias=torch.zeros(3, 1)),
                "k": lambda: rt.scaled_dot_product_attention(x, x[:1], x),
                "v": lambda: rt.scaled_dot_product_attention(x, x, x[:1]),
                "keep": lambda: rt.dropout(x, torch.ones(4, dtype=torch.bool), rate=0.5),
                "head bias": lambda: rt.output_head(x, w, one),
                "table": lambda: rt.add_positions(x, torch.zeros(9, 1)),
                "grad": lambda: rt.adamw_step(b, one, b, b, step=1, lr=0.1),
                "targets": lambda: rt.cross_entropy(x, torch.zeros(2, 1, dtype=torch.long)),
                "uniform": lambda: rt.sample(torch.full((2, 4), 0.25), torch.rand(1)),
                "dtypes": lambda: rt.layer_norm(x, b.double(), None),
                "dtypes of attention": lambda: rt.scaled_dot_product_attention(x, x.double(), x),
                "dtypes of positions": lambda: rt.add_positions(x, torch.zeros(9, 4, dtype=torch.float64)),
                "float ids": lambda: rt.token_embedding(torch.zeros(3), w),
                "integers": lambda: rt.relu(torch.tensor([1])),
            }
            for name, call in refused.items():
                try:
                    call()
                except TypeError:
                    continue
                raise AssertionError(f"{name}: nothing was refused")
            with pytest.raises(IndexError):
                rt.token_embedding(torch.tensor([-1]), w)
        """)

    def test_the_compiler_agrees(self):
        """Compiled whole (fullgraph), functions and model give the eager results and gradients, NaN included."""
        without_checks("""
            from dataclasses import replace
            import torch
            import reference.torch as rt
            from reference.config import ModelConfig
            from reference.parameters import init_params, map_tree

            torch.set_default_dtype(torch.float64)
            # Tracing shows that there is one graph; the compiler behind it would take a minute.
            compiled = lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")
            q, k, v, x = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6), torch.randn(2, 5, 8)
            mask, bias, w = torch.rand(2, 3, 5) < 0.5, torch.randn(2, 3, 5), torch.randn(8, 8)
            mask[0, 0] = False
            broken = torch.cat((v[:, :3], v[:, 3:] * float("nan")), dim=1)
            ids = torch.randint(0, 8, (2, 5))
            functions = {
                "weights": lambda q, k: rt.attention_weights(q, k, mask=mask, bias=bias, causal=True),
                "attention": lambda q, k: rt.scaled_dot_product_attention(q, k, v, mask=mask, bias=bias, causal=True),
                "broken, causal": lambda k: rt.scaled_dot_product_attention(k, k, broken, causal=True),
                "broken tokens": lambda x: rt.multi_head_attention(
                    torch.cat((x[:, :3], x[:, 3:] * float("nan")), dim=1).detach(), w, w, w, w, n_heads=2, causal=True
                ),
                "deviation": lambda x: rt.layer_norm(x, None, w[0], variant="std_plus_eps"),
                "mlp": lambda x: rt.feed_forward(x, w, w[0], w, None, activation="gelu_tanh", keep=x > 0, rate=0.5),
                "loss": lambda x: rt.cross_entropy(x, ids, label_smoothing=0.1),
                "no loss": lambda x: rt.cross_entropy(x, ids * 0 - 100, label_smoothing=0.1),
                "clipped": lambda x: rt.clip_grad_norm({"a": x, "b": [w]}, max_norm=1.0)[0]["a"],
                "distribution": lambda x: rt.next_token_distribution(x, top_k=5, top_p=0.5),
            }
            values = {"q": q, "k": k, "x": x, "w": w}
            for name, function in functions.items():
                inputs = [values[arg].clone().requires_grad_() for arg in function.__code__.co_varnames]
                results = []
                for f in (function, compiled(function)):
                    y = f(*inputs)
                    results.append([y, *(torch.autograd.grad(y.square().sum(), inputs) if y.requires_grad else [])])
                assert len(results[0]) == len(results[1])
                for eager, whole in zip(*results):
                    torch.testing.assert_close(whole, eager, rtol=0, atol=1e-12, equal_nan=True, msg=name)

            config = ModelConfig(vocab=8, d_model=8, n_heads=2, n_layers=1, d_ff=12, max_len=16, dropout=0.5)
            model = rt.Transformer(config)
            whole = compiled(model)
            assert not torch.equal(whole(ids), whole(ids))  # train mode draws, and anew each time
            keep = torch.rand(2, 5, 8) < 0.5
            block = {"attention": keep, "mlp_hidden": torch.rand(2, 5, 12) < 0.5, "mlp": keep}
            keep = {"positions": keep, "blocks": [block]}
            grads = []
            for f in (model, whole):
                loss = rt.cross_entropy(f(ids, keep=keep), ids)
                grads.append(torch.autograd.grad(loss, list(model.parameters())))
            torch.testing.assert_close(*grads, rtol=0, atol=1e-12)

            params = map_tree(torch.as_tensor, init_params(config, seed=0))
            torch.testing.assert_close(
                compiled(rt.transformer)(ids, params, config), rt.transformer(ids, params, config), rtol=0, atol=1e-12
            )
        """)
