"""Known mistakes in what is saved of a run, and in how it goes on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from reference import checkpoint
from reference.data import Batch, ShuffledSequences, generator
from reference.numpy import training
from reference.parameters import Tree, map_tree
from reference.recipe import Recipe
from reference.runs import Moments
from spec_tests.pitfalls.pitfall import Pitfall

RESUMED = "spec_tests.test_training.test_a_run_goes_on_as_if_it_had_never_stopped"
SAVED = "spec_tests.reference.test_resume.test_a_resumed_run_is_the_run"
ORDER = "spec_tests.reference.test_data.test_sequences_come_in_the_order_of_their_step"
read, train, loss_and_gradient = checkpoint._read, training.train, training.loss_and_gradient


def weights_alone(*arguments: Any) -> checkpoint.Checkpoint:
    """Read the parameters, and begin the rest anew."""
    found = read(*arguments)
    nothing = map_tree(np.zeros_like, found.params)
    return replace(found, step=0, moments=Moments(step=0, m=nothing, v=nothing))


def of_another_optimizer(moments: Moments) -> Moments:
    """Give the state of an optimizer that never stepped."""
    return Moments(step=moments.step, m=map_tree(np.zeros_like, moments.m), v=map_tree(np.zeros_like, moments.v))


def skipping_too_few(
    params: Tree, config: Any, batches: Callable[[int], Batch], recipe: Recipe, *,
    moments: Moments | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Read two batches a step, and after a resumption skip one a step."""
    place = 0 if moments is None else moments.step

    def pair(step: int) -> Batch:
        nonlocal place
        two = [batches(place), batches(place + 1)]
        place += 2
        ids, targets = (np.concatenate(halves) for halves in zip(*two, strict=True))
        return ids, targets

    options["keep_masks"] = lambda step: None
    return train(params, config, pair, recipe, moments=moments, **options)


def epoch_counted_by_the_loader(self: ShuffledSequences, step: int) -> Batch:
    """Count epochs from the moment at which the loader was made, which after a resumption is the first."""
    in_epoch = -(-len(self.sequences) // self.batch_size)
    begun = vars(self).setdefault("begun", step // in_epoch)
    epoch, place = step // in_epoch - begun, step % in_epoch
    order = generator(self.seed, "batches", epoch).permutation(len(self.sequences))
    return self._rows(self.sequences[order[place * self.batch_size :][: self.batch_size]])


PITFALLS = (
    Pitfall(
        id="checkpoints.weights_alone",
        catalogue=("systems/resume_without_optimizer_or_scheduler",),
        sources=(
            "https://github.com/PolymathicAI/the_well/issues/77",
            "https://github.com/NVIDIA-NeMo/Automodel/issues/763",
            "https://github.com/CodefyUI/CodefyUI/pull/147",
            "https://github.com/kdexd/virtex/issues/18",
        ),
        does="A run goes on from its weights alone, while moments, number of steps and schedule begin anew.",
        shows="The rate jumps back to the warm-up and the loss has a bump where the run was resumed.",
        mend="Save and restore all that the next step depends on, and hold a resumed run against a whole one.",
        visibility="training",
        programs={"reference.checkpoint._read": weights_alone},
        caught_by=(SAVED,),
    ),
    Pitfall(
        id="checkpoints.of_another_optimizer",
        catalogue=("systems/checkpoint_saves_wrong_optimizer_object",),
        sources=("https://github.com/CodefyUI/CodefyUI/pull/147",),
        does="What is saved is the state of another optimizer object than the one that takes the steps.",
        shows="Every checkpoint has moments of 0, which shows only when a run goes on.",
        mend="Save the object that stepped, and see that each trained parameter has a moment.",
        visibility="silent",
        programs={"reference.numpy.training._copied": of_another_optimizer},
        caught_by=(RESUMED, SAVED),
    ),
    Pitfall(
        id="checkpoints.skips_one_batch_a_step",
        catalogue=("systems/resume_skip_ignores_accumulation",),
        sources=("https://github.com/EleutherAI/gpt-neox/pull/308",),
        does="A resumed run skips one batch for each step that was taken, although each step read several.",
        shows="Where gradients are accumulated a resumed run sees data again.",
        mend="Skip the steps times the batches that each of them reads.",
        visibility="silent",
        programs={"reference.numpy.training.train": skipping_too_few},
        caught_by=(RESUMED,),
    ),
    Pitfall(
        id="checkpoints.epoch_counted_by_the_loader",
        catalogue=("systems/resume_epoch_seed_reset",),
        sources=("https://github.com/huggingface/accelerate/pull/4071",),
        does="The loader of a resumed run counts epochs from 0, so that it shuffles as in the first.",
        shows="A run resumed in a later epoch sees some sequences twice and some not at all.",
        mend="Let the order be a function of the seed and the epoch, and the epoch one of the step.",
        visibility="silent",
        programs={"reference.data.ShuffledSequences.batch": epoch_counted_by_the_loader},
        caught_by=(ORDER,),
    ),
)
