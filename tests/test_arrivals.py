import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from twolane.arrivals import Process, due_ns
from twolane.clock import NS
from twolane.errors import QuestionError


def test_constant_arrivals_do_not_drift() -> None:
    assert due_ns("constant", 3, 2, seed=1) == [round(i / 3 * NS) for i in range(6)]


def test_poisson_intervals_are_exponential() -> None:
    intervals = np.diff(due_ns("poisson", 50, 100, seed=7)) / NS
    assert oracle.kstest(intervals, oracle.expon(scale=1 / 50).cdf).pvalue > 0.01


def test_gamma_keeps_the_rate_and_takes_the_burstiness() -> None:
    intervals = np.diff(due_ns("gamma", 50, 200, seed=7, burstiness=0.25)) / NS
    assert intervals.mean() == pytest.approx(1 / 50, rel=0.05)
    assert intervals.std() / intervals.mean() == pytest.approx(2.0, rel=0.1)


@given(st.sampled_from(["constant", "poisson", "gamma"]), st.integers(0, 2**32))
def test_arrivals_ascend_within_the_time_and_follow_the_seed(process: Process, seed: int) -> None:
    moments = due_ns(process, 20, 2, seed=seed)
    assert moments == sorted(moments)
    assert all(0 <= moment < 2 * NS for moment in moments)
    assert moments == due_ns(process, 20, 2, seed=seed)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(QuestionError, match="rate 0"):
        due_ns("poisson", 0, 1, seed=0)
