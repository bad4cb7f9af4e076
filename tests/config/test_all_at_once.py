"""One reading of a file names all of its mistakes, each with place, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from twolane.cli import cli
from twolane.config import load_campaign, load_models, source
from twolane.errors import ConfigError, Faults, QuestionError

CONFIGS = Path(__file__).parents[2] / "configs"
CAMPAIGN = """\
name: my demo
models: models.yaml
model: needle
context: [1]
arms:
  a: {layout: one, budgit: 256}
  b: {layout: onne, args: [--x 'open, --y 'open]}
  c: {budget: 3}
cells:
  - c4 in512 out64
  - 5
  - c4 in512 outt64
  - c4  in512 out64
gates: [needle 5, fresh 1k]
greedy: [60, lots]
blocks: many
sede: 3
slos: {chat: {ttft: 5, share: 2}}
"""
MODELS = """\
node: {platform: cpu, groups: {GROUP_A: [0], GROUP_B: [1]}}
models:
  needle:
    path: builtin:needle
    layouts:
      one: {cores: $GROUP_A}
"""


def written(folder: Path, campaign: str = CAMPAIGN, models: str = MODELS) -> Path:
    (folder / "models.yaml").write_text(models)
    path = folder / "campaign.yaml"
    path.write_text(campaign)
    return path


def faults_of(path: Path) -> list[tuple[str, str]]:
    """`file:line` and the words of every mistake."""
    with pytest.raises(ConfigError) as refused:
        load_campaign(path)
    for one in refused.value.each:
        assert one.place
        assert one.remedy
    return [(one.place.rsplit("/", 1)[-1], one.what) for one in refused.value.each]


def test_every_independent_mistake_of_a_campaign_is_named_in_order(tmp_path: Path) -> None:
    found = faults_of(written(tmp_path))
    expected = [
        (1, "'name' is 'my demo'"),
        (4, "'context' is [1]: Input should be a valid integer, or Input should be a valid string"),
        (6, "unknown key 'budgit' in 'arms.a'"),
        (7, """argument "--x 'open": No closing quotation"""),
        (7, """argument "--y 'open": No closing quotation"""),
        (8, "'arms.c.layout' is missing"),
        (11, "'cells.1' is 5"),
        (12, "'t64' is not a size"),
        (13, "a second time"),
        (14, "needle of 5 tokens"),
        (14, "'fresh 1k' is not a gate"),
        (15, "'lots' is not a size"),
        (16, "'blocks' is 'many'"),
        (17, "unknown key 'sede'"),
        (18, "unknown key 'ttft' in 'slos.chat'"),
        (18, "'slos.chat.share' is 2"),
    ]
    assert [place.split(":")[1] for place, _ in found] == [str(line) for line, _ in expected]
    for (_, said), (_, words) in zip(found, expected, strict=True):
        assert words in said


def test_what_rests_on_a_mistake_is_not_told_as_one(tmp_path: Path) -> None:
    """A key that is misspelt is not missing, and no arm is judged by a model that is not there."""
    text = CAMPAIGN.split("arms:", maxsplit=1)[0].replace("my demo", "mine").replace("[1]", "4k")
    text += "arms: {a: {layout: nowhere}}\ncels: [c4 in512 out64]\nmodell: x\n"
    found = faults_of(written(tmp_path, text.replace("model: needle\n", "")))
    assert [said.split(" in ")[0] for _, said in found] == [
        "unknown key 'cels'",
        "unknown key 'modell'",
    ]


def test_both_files_are_read(tmp_path: Path) -> None:
    models = MODELS.replace("GROUP_B: [1]", "GROUP_B: [0, -1]").replace("$GROUP_A", "$GROUP_C")
    found = faults_of(written(tmp_path, CAMPAIGN, models))
    assert [f"{p.split(':')[0]} {said}" for p, said in found if p.startswith("models")] == [
        "models.yaml device 0 of GROUP_B is already in GROUP_A",
        "models.yaml device -1 of GROUP_B is negative",
    ]
    assert len(found) == 16 + 2


def test_every_mistake_of_a_models_file_is_named(tmp_path: Path) -> None:
    text = MODELS.replace("builtin:needle", "<fill me in>") + "".join(
        [
            "      two: {cores: $GRUOP_A, tpp: 2}\n",
            "      three: {copies: [one, six]}\n",
            "      four: {copies: two}\n",
            "      five: {}\n",
            "      six: {cores: 3}\n",
            "      seven: {copies: [one, eight]}\n",
        ]
    )
    written(tmp_path, models=text)
    with pytest.raises(ConfigError) as refused:
        load_models(tmp_path / "models.yaml")
    said = [(one.place.split(":")[-2], one.what) for one in refused.value.each]
    assert [line for line, _ in said] == ["4", "7", "7", "10", "11", "12"]
    assert "not filled in" in said[0][1]
    assert "'$GRUOP_A' is not a group" in said[1][1]
    assert "unknown key 'tpp'" in said[2][1]
    assert "is nothing" in said[3][1]
    assert "'eight' is not an engine" in said[-1][1]


def test_check_and_run_print_them_all_and_exit_with_2(tmp_path: Path) -> None:
    path = written(tmp_path)
    for words in (["check", str(path)], ["run", str(path), "--dry-run"]):
        told = CliRunner().invoke(cli, words)
        assert told.exit_code == 2
        assert told.output.count("error: ") == told.output.count("remedy: ") == 16
        assert "'t64' is not a size" in told.output
        assert "'sede'" in told.output


def test_a_run_names_every_wrong_word_of_its_command_line() -> None:
    words = ["run", str(CONFIGS / "demo.yaml"), "--dry-run", "--resume"]
    more = ["--arm", "coppies_256", "--block", "7", "--redo", "BUZY", "--allow", "TOK99"]
    told = CliRunner().invoke(cli, [*words, *more])
    assert told.exit_code == 2
    for value in ("'coppies_256'", "no block 7", "'BUZY'", "'TOK99'"):
        assert value in told.output


def test_a_run_names_every_error_of_preflight(tmp_path: Path) -> None:
    text = (CONFIGS / "demo.yaml").read_text().replace("models: cpu", f"models: {CONFIGS}/cpu")
    env = "env: {VLLM_KV_CACHE_LAYOUT: NHD}"
    path = tmp_path / "demo.yaml"
    path.write_text(
        text.replace("context: 16384", "context: 65536").replace(
            "layout: split_1p1d", f"layout: split_1p1d, {env}, args: [--no-such-option]"
        )
    )
    told = CliRunner().invoke(cli, ["run", str(path), "--dry-run"])
    assert told.exit_code == 2
    rules = {line.split("--allow ")[1] for line in told.output.splitlines() if "--allow " in line}
    assert len(rules) > 1


def test_bench_names_every_faulty_cell() -> None:
    told = CliRunner().invoke(
        cli, ["bench", "http://127.0.0.1:9", "--cell", "c4 inn5", "--cell", "ramp", "--cell", "x"]
    )
    assert told.exit_code == 2
    for cell in ("c4 inn5", "ramp", "x"):
        assert f"error: --cell {cell!r}: " in told.output


def test_faults_are_told_once_and_by_place() -> None:
    faults = Faults()
    for place in ("f:10:2", "f:9:1", "f:10:2", "f:10:1"):
        faults.add(ConfigError("wrong", place=place, remedy="mend"))
    faults.add(QuestionError("another", place="g"))
    with pytest.raises(ConfigError) as refused:
        faults.refuse()
    places = [one.place for one in refused.value.each]
    assert places == ["f:9:1", "f:10:1", "f:10:2", "g"]
    assert str(refused.value).count("remedy: mend") == 3
    Faults().refuse()


LINES = CAMPAIGN.splitlines(keepends=True)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(range(len(LINES))), max_size=12), st.sampled_from("[]{}5:'\n-"))
def test_any_mixture_loads_or_names_places(
    tmp_path_factory: pytest.TempPathFactory, left_out: list[int], dirt: str
) -> None:
    lines = [line if i not in left_out[1:] else "" for i, line in enumerate(LINES)]
    if left_out:
        lines[left_out[0]] = lines[left_out[0]].replace(" ", f" {dirt}", 1)
    path = written(tmp_path_factory.mktemp("c"), "".join(lines))
    try:
        load_campaign(path)
    except QuestionError as error:
        assert all(one.remedy for one in error.each)


def test_a_file_of_nothing_but_mistakes_ends(tmp_path: Path) -> None:
    path = written(tmp_path, "a: 1\nname: [[[]]]\narms: {1: {2: {3: 4}}, x: {proxy: {a: [1]}}}\n")
    assert len(faults_of(path)) > 5
    assert source.read(path).data["a"] == 1
