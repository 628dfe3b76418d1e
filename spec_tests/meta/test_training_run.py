"""A training run that differs is told by its first difference: the step, what was computed there, and the tensor."""

import pytest
from hypothesis import given, settings

from reference.numpy import adamw_step, clip_grad_norm, transformer_vjp
from reference.parameters import leaves
from spec_tests.judge import Mismatch
from spec_tests.meta.faults import Fault
from spec_tests.strategies import changed
from spec_tests.test_models import test_fifty_steps_of_training_are_those_of_the_reference as fifty_steps
from spec_tests.test_models import training_runs

WHERE = "blocks.0.mlp.w_2"


def gradient_off(cotangent, ids, params, config):  # noqa: D103
    (gradient,) = transformer_vjp(cotangent, ids, params, config)
    return (changed(gradient, lambda path, leaf: 1.01 * leaf if path == WHERE else leaf),)


def clipped_off(grads, *, max_norm):  # noqa: D103
    clipped, norm = clip_grad_norm(grads, max_norm=max_norm)
    return changed(clipped, lambda path, leaf: 1.01 * leaf if path == WHERE else leaf), norm


def off_from_the_third_step(param, grad, m, v, *, step, **options):  # noqa: D103
    param, m, v = adamw_step(param, grad, m, v, step=step, **options)
    return param + 1e-6 * (step >= 3), m, v


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({"transformer_vjp": gradient_off}, f"step 1 is the first to differ: the gradient of {WHERE}"),
        ({"clip_grad_norm": clipped_off}, f"step 1 is the first to differ: the clipped gradient of {WHERE}"),
        ({"adamw_step": off_from_the_third_step}, "step 3 is the first to differ: the update of token_embedding.table"),
    ],
)
def test_the_first_difference_is_named(functions, words):
    """Whether it is the gradient, the clipped one or the update that differs first, the message says so."""

    @settings(max_examples=1, database=None, deadline=None)
    @given(drawn=training_runs().filter(lambda drawn: drawn[2]["max_norm"] is not None))
    def run(drawn):
        subject = Fault("a wrong run", functions, ()).subject()
        with pytest.raises(Mismatch, match=words):
            fifty_steps.hypothesis.inner_test(subject=subject, drawn=drawn)
        # the calls of the step that differs are left: a failure is reproduced from them
        assert [call.component for call in subject.calls][:2] == ["transformer", "cross_entropy"]
        assert len(subject.calls) < 10
        assert WHERE in dict(leaves(drawn[0]))

    run()
