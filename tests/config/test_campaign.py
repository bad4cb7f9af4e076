"""campaign.yaml and the cell grammar."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from twolane import plan
from twolane.cli import cli
from twolane.config import load_campaign, parse_cell, parse_size
from twolane.config.cells import NEEDLE_ANSWER, tokens_needed
from twolane.engines.front import command
from twolane.errors import ConfigError, QuestionError
from twolane.gates import needle
from twolane.records import GridCell, InterferenceCell, NeedleCell

CONFIGS = Path(__file__).parents[2] / "configs"
DEMO = CONFIGS / "demo.yaml"


def changed(folder: Path, old: str, new: str) -> Path:
    (folder / "cpu.yaml").write_text((CONFIGS / "cpu.yaml").read_text())
    path = folder / "campaign.yaml"
    text = DEMO.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_the_demo_has_the_three_arms_and_two_cells() -> None:
    demo = load_campaign(DEMO)
    assert [a.name for a in demo.arms] == ["copies_2048", "copies_256", "split_1p1d"]
    assert [type(c) for c in demo.cells] == [InterferenceCell, GridCell]
    for arm, budget in zip(demo.arms, ["2048", "256", "2048"], strict=True):
        for engine in arm.layout.engines:
            at = engine.args.index("--max-num-batched-tokens")
            assert engine.args[at + 1] == budget


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("layout: copies, budget: 2048", "layout: coppies, budget: 2048", 10, "'coppies'"),
        ("context: 16384", "context: 4k", None, "context is 4096"),
        ("context: 16384", "context: lots", 6, "'lots' is not a size"),
        ("- interference victims=2", "- interference victim=2", 14, "'victim=2'"),
        ("model: needle", "model: needel", 5, "no model 'needel'"),
        ("budget: 256,", "budget: 0,", 11, "budget"),
        ("greedy: [60", "greedi: [60", 8, "unknown key 'greedi'"),
    ],
)
def test_faults_have_places(
    tmp_path: Path, old: str, new: str, line: int | None, what: str
) -> None:
    path = changed(tmp_path, old, new)
    with pytest.raises(ConfigError) as caught:
        load_campaign(path)
    assert what in caught.value.what
    assert caught.value.place.startswith(f"{path}:{line or ''}")


def test_a_cell_cannot_be_measured_twice_in_a_run(tmp_path: Path) -> None:
    cell = "c4 in512 out64 n36"
    path = changed(tmp_path, f"- {cell}", f"- {cell}\n  - c4 in512  out64 n36")
    with pytest.raises(ConfigError, match="a second time"):
        load_campaign(path)


def test_the_digest_ignores_where_files_lie_and_sees_what_runs(tmp_path: Path) -> None:
    same = load_campaign(changed(tmp_path, "name: demo", "name: demo")).digest()
    assert same == load_campaign(DEMO).digest()
    other = load_campaign(changed(tmp_path, "budget: 256", "budget: 512")).digest()
    assert other != same


@pytest.mark.parametrize(
    ("text", "tokens"), [("6000", 6000), ("64k", 65536), ("1m", 1 << 20), ("1.5k", 1536)]
)
def test_sizes(text: str, tokens: int) -> None:
    assert parse_size(text) == tokens


def test_cells_read_back_from_their_ids() -> None:
    for text in ("c64 in1024 out1024 n640", "c4 in512 out64 30s", "needle 65536",
                 "interference victims=2 prompt=60000 quiet=3s shots=2",
                 "fresh 131072", "fresh 131072 n=3 out=8", "ramp 131072",
                 "ramp 24000 users=2 turns=6 after=8000 out=32",
                 "mix long=61440 share=0.02 rate=20 60s",
                 "mix rate=2.5 short=64 0.5s"):  # fmt: skip
        cell = parse_cell(text)
        assert cell.id == text
        assert parse_cell(cell.id) == cell
    assert parse_cell("needle 64k") == NeedleCell(id="needle 65536", prompt=65536)
    assert parse_cell("c2 in1k out8").id == "c2 in1024 out8 n20"
    assert parse_cell("ramp 128k turns=8 after=64k") == parse_cell("ramp 131072 users=1")
    assert (
        parse_cell("mix share=.02 long=60k rate=20").id == "mix long=61440 share=0.02 rate=20 60s"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fresh", "needs a length"),
        ("fresh 1k n=0", "no requests"),
        ("fresh 1k m=1", "unknown word 'm=1'"),
        ("ramp 8k turns=1", "one turn"),
        ("ramp 1k turns=8", "too short turns"),
        ("ramp 8k after=9k", "longer than the ramp"),
        ("ramp 8k users=two", "'users=two' is not a number"),
        ("mix long=60k rate=20", "together"),
        ("mix long=60k share=1.5 rate=20", "at most 1"),
        ("mix rate=inf", "not a number"),
        ("mix rate=2 3s 4s", "one time"),
        ("mix rate=1e-3 604801s", "at most a week"),
        ("c1 in8 out8 " + "9" * 400 + "s", "at most a week"),
        ("interference victims=1 prompt=8 quiet=99999999", "at most a week"),
        ("fresh " + "9" * 400, "not a size"),
        ("c" + "9" * 5000 + " in8 out8", "unknown cell"),
        ("c1 in8 out8 n" + "9" * 5000, "unknown word"),
        ("fresh 1k n=" + "9" * 5000, "not a number"),
        ("trace /dev/zero", "not a file"),
        ("trace /", "not a file"),
        ("trace a\0b", "cannot be read"),
    ],
)
def test_a_cell_that_cannot_be_says_why(text: str, says: str) -> None:
    with pytest.raises(QuestionError, match=says):
        parse_cell(text)


def test_a_trace_that_would_never_end_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 90000000, "input_length": 8}\nnot a request\n')
    assert parse_cell(f"trace {trace} n=1").prompt == 8, "what is not sent is not read"
    for pace in ("speed=0.01", "rate=1e-9"):
        with pytest.raises(QuestionError, match="would last"):
            parse_cell(f"trace {trace} n=1 {pace}")
    with pytest.raises(QuestionError, match="not a request"):
        parse_cell(f"trace {trace}")


def test_answers_that_no_cell_says_are_as_long_as_they_are_asked() -> None:
    assert NEEDLE_ANSWER == needle.ANSWER_TOKENS


def test_a_trace_needs_its_longest_request(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"prompt": "aaaa", "output": 9}\n{"prompt": "a", "output": 5}\n{"prompt": "aaaaaa"}\n'
    )
    assert tokens_needed(parse_cell(f"trace {trace} rate=1 n=2")) == 13
    assert tokens_needed(parse_cell(f"trace {trace} rate=1")) == 70


WORDS = ["ramp", "fresh", "mix", "8k", "1m", "n=2", "users=2", "turns=3", "after=1k", "out=8",
         "long=4k", "share=0.5", "rate=1e-7", "rate=3", "short=9", "0.1s", "7s"]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=6))
def test_cells_of_known_words_read_back(words: list[str]) -> None:
    try:
        cell = parse_cell(" ".join(words))
    except QuestionError:
        return
    assert parse_cell(cell.id) == cell


@given(st.text(alphabet="c in0123456789outks=.-vmprhfealx \t", max_size=40))
def test_any_text_is_a_cell_or_a_question_error(text: str) -> None:
    try:
        cell = parse_cell(text)
    except QuestionError as error:
        assert error.remedy
    else:
        assert parse_cell(cell.id) == cell


def test_plan_swaps_groups_and_order_so_that_arms_share_both(tmp_path: Path) -> None:
    path = changed(tmp_path, "name: demo", "name: demo\nblocks: 4")
    planned = plan.runs(load_campaign(path))
    assert [p.order for p in planned] == list(range(12))
    split = [p for p in planned if p.arm.name == "split_1p1d"]
    prefill_groups = [p.layout.engines[0].group for p in split]
    assert prefill_groups == ["GROUP_A", "GROUP_B", "GROUP_B", "GROUP_A"]
    first = [next(p.arm.name for p in planned if p.block == b) for b in range(4)]
    assert first == ["copies_2048", "split_1p1d", "copies_2048", "split_1p1d"]
    assert len({p.key for p in planned}) == 12
    for block in range(4):
        assert len({p.seed for p in planned if p.block == block}) == 1
    assert len({p.seed for p in planned}) == 4


def test_a_plan_is_the_same_twice_and_keys_follow_the_work(tmp_path: Path) -> None:
    demo = load_campaign(DEMO)
    assert [p.key for p in plan.runs(demo)] == [p.key for p in plan.runs(load_campaign(DEMO))]
    other = load_campaign(changed(tmp_path, "name: demo", "name: demo\nseed: 2"))
    assert {p.key for p in plan.runs(other)}.isdisjoint(p.key for p in plan.runs(demo))


def test_a_models_file_is_told_from_a_campaign() -> None:
    with pytest.raises(ConfigError, match="a models file, not a campaign"):
        load_campaign(CONFIGS / "cpu.yaml")


def test_service_levels_and_a_time_budget_are_read(tmp_path: Path) -> None:
    more = "name: demo\nslos: {chat: {ttft_ms: 500, share: 0.95}}\ntime_budget: 1.5h"
    campaign = load_campaign(changed(tmp_path, "name: demo", more))
    assert campaign.slos == {"chat": {"ttft_ms": 500, "share": 0.95}}
    assert campaign.resolved()["slos"] == campaign.slos
    assert campaign.time_budget_s == 5400
    assert "slos" not in load_campaign(DEMO).resolved()
    keys = [p.key for p in plan.runs(load_campaign(DEMO))]
    assert [p.key for p in plan.runs(campaign)] == keys, "they change what is asked, not what runs"


@pytest.mark.parametrize("line", ["time_budget: 5", "slos: {chat: {ttft: 5}}"])
def test_a_wrong_budget_or_level_has_a_place(tmp_path: Path, line: str) -> None:
    path = changed(tmp_path, "name: demo", f"name: demo\n{line}")
    with pytest.raises(ConfigError) as refused:
        load_campaign(path)
    assert refused.value.place.startswith(f"{path}:")


def test_runs_are_the_same_wherever_the_models_folder_lies(tmp_path: Path) -> None:
    """So that results can be carried to another host and go on there."""
    needle = Path(load_campaign(DEMO).model.path)
    keys, digests = [], []
    for folder in (tmp_path / "one", tmp_path / "elsewhere" / "other"):
        shutil.copytree(needle, folder / "model", ignore=shutil.ignore_patterns("__pycache__"))
        models = (CONFIGS / "cpu.yaml").read_text().replace("builtin:needle", "./model")
        (folder / "cpu.yaml").write_text(models)
        (folder / "demo.yaml").write_text(DEMO.read_text())
        campaign = load_campaign(folder / "demo.yaml")
        assert str(folder) in campaign.model.path
        keys.append([run.key for run in plan.runs(campaign)])
        digests.append(campaign.digest())
    keys.append([run.key for run in plan.runs(load_campaign(DEMO))])
    assert keys[0] == keys[1] == keys[2]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("greedy: [60", "greedy: [99999999999", "context is 16384"),
        ("greedy: [60", "greedy: [16360", "16360 tokens and 32 of its answer, context is 16384"),
        ("gates: [needle 500", "gates: [needle 16375", "needs 16387 tokens"),
        ("c4 in512 out64 n36", "c4 in16300 out640", "needs 16940 tokens"),
        ("c4 in512 out64 n36", "fresh 16300 out=640", "needs 16940 tokens"),
        ("c4 in512 out64 n36", "ramp 16384", "needs 16448 tokens"),
        ("c4 in512 out64 n36", "mix rate=1 short=16000 out=500", "needs 16500 tokens"),
        ("c4 in512 out64 n36", "interference victims=1 prompt=16380", "needs 16396 tokens"),
        (
            "c4 in512 out64 n36",
            "interference victims=1 prompt=60 victim_prompt=16k",
            "needs 16385 tokens",
        ),
        ("budget: 256,", 'budget: 256, env: {A: "x\\0y"},', "no command line can hold"),
        ("budget: 256,", 'budget: 256, args: ["--a", "\\0"],', "no command line can hold"),
        ("budget: 256,", "budget: 256, env: {A=B: 1},", "should match"),
        ("name: demo", "name: demo\nstart_timeout_s: 1e300", "less than or equal to 604800"),
        ("name: demo", f"name: {'a' * 300}", "at most 100"),
        ("name: demo", "name: demo\nblocks: 1000000000000", "less than or equal to 1000"),
        ("name: demo", f"name: demo\nseed: 0x{'f' * 40}", "'seed' is"),
        ("name: demo", "name: demo\nslos: {a: {ttft_ms: .inf}}", "finite"),
        ("name: demo", "name: demo\nslos: !!omap [a: 1]", "'slos.a' is 1"),
        ("name: demo", "name: demo\nfoo: 1", "unknown key 'foo' in the file"),
        ("name: demo", "name: demo\nslos: {a: {foo: 1}}", "unknown key 'foo' in 'slos.a'"),
        ("name: demo", "name: demo\nseed: 0x_", "not YAML"),
        ("name: demo", "name: demo\nseed: 0b_", "not YAML"),
        ("context: 16384", "context: .nan", "'context' is nan"),
        ("  copies_2048:", '  "../x":', "'../x'"),
        ("  copies_2048:", '  "":', "it stands in names of files"),
        ("  copies_2048:", f"  {'ä' * 60}:", "at most 100 bytes"),
        ("  copies_2048:", '  "a\\tb":', "it stands in names of files"),
    ],
)
def test_what_could_not_run_or_be_kept_is_refused(
    tmp_path: Path, old: str, new: str, what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_campaign(changed(tmp_path, old, new))
    assert what in caught.value.what
    assert caught.value.remedy


def test_a_models_path_that_no_file_has_is_the_questions_fault(tmp_path: Path) -> None:
    path = changed(tmp_path, "models: cpu.yaml", 'models: "a\\0b"')
    with pytest.raises(ConfigError, match="no command line can hold"):
        load_campaign(path)


@pytest.mark.parametrize(
    "text",
    [
        "interference victims=2 prompt=6000 victims=3",
        "c4 in512 out64 n36 n37",
        "c4 in512 in600 out64",
        "mix long=6k share=0.02 rate=2 rate=3 60s",
    ],
)
def test_a_word_that_stands_twice_is_not_lost_in_silence(text: str) -> None:
    with pytest.raises(QuestionError, match="a second time"):
        parse_cell(text)


@pytest.mark.parametrize(
    "text",
    [
        "c4 in5 out5 n999999999999",
        "c999999999999 in5 out5 10s",
        "mix long=6k share=0.02 rate=1e308 60s",
        "mix rate=20000 600000s",
        "interference victims=99999999999 prompt=6000",
        "fresh 128k n=99999999999",
        "ramp 128k users=99999999999",
    ],
)
def test_more_requests_than_any_run_has_are_refused(text: str) -> None:
    with pytest.raises(QuestionError, match="would send") as caught:
        parse_cell(text)
    assert "10,000,000" in caught.value.remedy


def test_an_arms_arguments_are_read_as_a_layouts_are(tmp_path: Path) -> None:
    given = '[--max-num-seqs 4, "--block-size=128", --swap-space, 9]'
    path = changed(tmp_path, "layout: split_1p1d", f"layout: split_1p1d, args: {given}")
    for engine in load_campaign(path).arms[2].layout.engines:
        words = ("--max-num-seqs", "4", "--block-size=128", "--swap-space", "9")
        at = engine.args.index("--max-num-seqs")
        assert engine.args[at : at + 5] == words
        assert engine.places["--block-size"].startswith(f"{path}:12:")
    path = changed(tmp_path, "layout: split_1p1d", "layout: split_1p1d, args: [--x 'open]")
    with pytest.raises(ConfigError, match="No closing quotation") as caught:
        load_campaign(path)
    assert caught.value.place.startswith(f"{path}:12:")


def test_an_arm_may_ask_something_of_its_proxy(tmp_path: Path) -> None:
    asks = "layout: split_1p1d, proxy: {connector: push, tokenise_once: true, kv_limit: 0.8}"
    plain, asking = (
        load_campaign(DEMO),
        load_campaign(changed(tmp_path, "layout: split_1p1d", asks)),
    )
    words = ("--connector", "push", "--tokenise-once", "--kv-limit", "0.8")
    assert [arm.layout.proxy for arm in asking.arms] == [(), (), words]
    assert command(asking.arms[2].layout, ["http://a", "http://b"], port=1)[-5:] == list(words)
    keys = [[run.key for run in plan.runs(c)][:3] for c in (plain, asking)]
    assert [a == b for a, b in zip(*keys, strict=True)] == [True, True, False]
    assert "proxy" not in plain.resolved()["arms"]["split_1p1d"]
    assert asking.resolved()["arms"]["split_1p1d"]["proxy"] == words


@pytest.mark.parametrize(
    "asks",
    [
        "{connector: pul}",
        "{port: 1}",
        "{kv_limit: 2}",
        "{backlog: 0}",
        "{backlog: true}",
        "{backlog: 1.0}",
        "{decode_limit: '3'}",
        "{split_from: false}",
        "{kv_limit: true}",
        "{tokenise_once: 1}",
    ],
)
def test_a_proxy_is_not_asked_for_what_it_does_not_know(tmp_path: Path, asks: str) -> None:
    path = changed(tmp_path, "layout: split_1p1d", f"layout: split_1p1d, proxy: {asks}")
    with pytest.raises(ConfigError) as caught:
        load_campaign(path)
    assert caught.value.place.startswith(f"{path}:12")


@pytest.mark.parametrize(
    ("arm", "what"),
    [
        ("args: [--max-model-len 8192]", "--max-model-len 8192 of arm split_1p1d, but the camp"),
        ("args: [--max_model_len=8192]", "--max-model-len 8192 of arm"),
        ("args: [--max-model-len, 16k]", "--max-model-len 16k of arm"),
        ("args: [--max-model-len -1]", "--max-model-len -1 of arm"),
        ("args: [--max-model-len]", "--max-model-len  of arm"),
        ("budget: 512, args: [--max-num-batched-tokens 256]", "but its budget is 512"),
    ],
)
def test_an_arm_that_would_lose_to_a_key_is_refused(tmp_path: Path, arm: str, what: str) -> None:
    path = changed(tmp_path, "layout: split_1p1d, budget: 2048", f"layout: split_1p1d, {arm}")
    with pytest.raises(ConfigError) as caught:
        load_campaign(path)
    assert what in caught.value.what
    assert caught.value.place.startswith(f"{path}:12:")
    assert "take" in caught.value.remedy


@pytest.mark.parametrize(
    "args", ["--max-model-len 16384", "--max_model_len=16K", "--max-num-batched-tokens 99"]
)
def test_an_arm_may_say_the_same_or_what_no_key_says(tmp_path: Path, args: str) -> None:
    path = changed(
        tmp_path, "layout: split_1p1d, budget: 2048", f"layout: split_1p1d, args: [{args}]"
    )
    assert args.split(maxsplit=1)[0] in load_campaign(path).arms[2].layout.engines[0].args


def test_check_says_that_a_layouts_own_length_gives_way(tmp_path: Path) -> None:
    models = (CONFIGS / "cpu.yaml").read_text()
    models = models.replace(
        "copy_a: {cores: $GROUP_A", "copy_a: {cores: $GROUP_A, args: [--max-model-len 4k]"
    )
    path = changed(tmp_path, "name: demo", "name: demo")
    (tmp_path / "cpu.yaml").write_text(models)
    told = CliRunner().invoke(cli, ["check", str(path)])
    said = "note: copy_a: --max-model-len 4k of cpu.yaml gives way to the campaign's context, 16384"
    assert told.output.count(said) == 1


def test_a_budget_may_be_a_size(tmp_path: Path) -> None:
    args = load_campaign(changed(tmp_path, "budget: 256", "budget: 2k")).arms[1].layout.engines[0]
    assert args.args[-2:] == ("--max-num-batched-tokens", "2048")
