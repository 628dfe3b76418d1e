"""Declared conventions: what a subject says that it reads otherwise than the contract is what it does.

Most of it needs no property: calls are translated, and every other property is put to the subject in its own terms.
Here is what no such call reaches. Each property is asked of those subjects only that declare what it is about.
"""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

import reference.numpy
from spec_tests.bounds import agree
from spec_tests.judge import close
from spec_tests.spec import states
from spec_tests.strategies import GENERATORS, calls, gradient_calls, in_general_position
from spec_tests.subjects.contract import Call, plain
from spec_tests.subjects.conventions import AS_DECLARED, CONVENTIONS, as_declared, in_its_own_reading

FIXED = tuple(convention.name for convention in CONVENTIONS if convention.fixed)
CASES = ("layer_norm.affine", "gelu.plain", "feed_forward.plain", "transformer_block.pre", "transformer.pre")


@states(cases=CASES, oracle=True, conventions=FIXED)
@given(data=st.data(), generator=GENERATORS)
def test_agrees_with_the_reference_as_declared(subject, case, data, generator):
    """In the variant and at the eps that it declares, the result is that of the NumPy reference, up to rounding."""
    call = _as_declared(subject, data.draw(gradient_calls(case)), generator)
    _agrees(subject, Call(plain(call.component), call.args[1:], call.options))


@states(cases=CASES, oracle=True, gradient=True, conventions=FIXED)
@given(data=st.data(), generator=GENERATORS)
def test_gradients_agree_with_the_reference_as_declared(subject, case, data, generator):
    """In the variant and at the eps that it declares, the gradients are those of the reference, up to rounding."""
    _agrees(subject, _as_declared(subject, data.draw(gradient_calls(case)), generator))


def _as_declared(subject, call, generator):
    if plain(call.component) == "layer_norm":
        assume(call.args[1].shape[-1] > 1)  # one number has no variance, whose eps would show
    return in_general_position(as_declared(call, subject.declared(call.component)), generator)


def _agrees(subject, call):
    should = getattr(reference.numpy, call.component)(*call.args, **call.options)
    agree(call, subject.call(call.component, *call.args, **call.options), should, eps=subject.eps)


CAUSAL = ("attention_weights.plain", "scaled_dot_product_attention.plain", "multi_head_attention.context")


@states(cases=("causal_mask.oblong", *CAUSAL), oracle=True, conventions=("causal",))
@given(data=st.data())
def test_the_causal_reading_is_the_one_declared(subject, case, data):
    """Where there are more keys than queries, or fewer, a causal mask is aligned to the end that is declared."""
    call = data.draw(calls(case))
    causal = {} if call.component == "causal_mask" else {"causal": True}
    call = Call(call.component, call.args, {**call.options, **causal})
    should = in_its_own_reading(call, "causal", subject.declared(call.component)["causal"])
    got = subject.call(call.component, *call.args, **call.options, **{AS_DECLARED: "causal"})
    agree(call, got, should, eps=subject.eps)


@states("next_token_distribution", conventions=("top_p",))
@given(generator=GENERATORS, vocab=st.integers(2, 7), top_p=st.sampled_from((0.1, 0.3, 0.7, 0.95)))
def test_top_p_ends_where_it_declares(subject, generator, vocab, top_p):
    """The token that crosses p is kept or dropped, as is declared, and the tokens kept are renormalised."""
    _ends_where_it_declares(subject, generator.standard_normal((2, vocab)), top_p)


@states("next_token_distribution", conventions=("top_p",))
@given(exponent=st.integers(1, 3), data=st.data())
def test_top_p_at_exactly_p_ends_where_it_declares(subject, exponent, data):
    """A mass of exactly p reaches p and does not exceed it: one more token is kept, or none, as is declared."""
    vocab = 2**exponent
    _ends_where_it_declares(subject, np.zeros(vocab), data.draw(st.integers(1, vocab - 1)) / vocab)


def _ends_where_it_declares(subject, logits, top_p):
    call = Call("next_token_distribution", (logits,), {"top_p": top_p})
    should = in_its_own_reading(call, "top_p", subject.declared(call.component)["top_p"])
    close(subject.call(call.component, logits, top_p=top_p, as_declared="top_p"), should, within=32 * subject.eps)
