"""From the pieces of answers to the numbers of a report, computed by hand."""

from __future__ import annotations

import json

import pytest
from hand_made import CODE, JSON, answer, drafted, plain, report

from app.bench.answer import AnswerReader
from app.bench.bench_error import BenchError
from app.bench.chunk import Choice, Chunk, Error, Metrics, SpeculativeDecoding, Usage
from app.bench.chunk import PromptTokensDetails as Details
from app.bench.level import Level
from app.bench.measurement import Measurement
from app.bench.plot import save_plot
from app.bench.prompt import ALL_KINDS
from app.bench.table import format_table


def usage(num_tokens: int) -> Usage:
    return Usage(num_tokens, Details(cached_tokens=2))


END = Chunk(usage=usage(4), metrics=Metrics(SpeculativeDecoding(1, 3, 2, [0, 0, 1])))


def test_tokens_per_second_are_those_of_all_answers_in_all_their_time():
    measurement = Measurement([plain(), drafted()])
    assert measurement.num_tokens == 8
    assert measurement.tokens_per_second == pytest.approx(8 / 3)


def test_acceptance_is_counted_by_draft_and_by_position():
    """Four drafts of 4: two had no right token, one had 1, and one had 2."""
    measurement = Measurement([answer((1.0, 7), histogram=[2, 1, 1], num_draft_tokens=16)])
    assert measurement.acceptance_rate == pytest.approx(3 / 16)
    assert measurement.mean_acceptance_length == pytest.approx(1 + 3 / 4)
    assert measurement.mean_draft_length == pytest.approx(4)
    assert measurement.acceptance_per_position == [0.5, 0.25]


def test_without_drafts_acceptance_is_unknown():
    measurement = Measurement([plain()])
    assert measurement.acceptance_rate is None
    assert measurement.mean_acceptance_length is None
    assert measurement.acceptance_per_position == []


def test_tokens_that_come_together_share_their_time_and_are_one_pause():
    measurement = Measurement([answer((0.5, 1), (0.6, 3), (0.1, 1))])
    assert measurement.time_to_first_token(50) == 0.5
    assert measurement.inter_token_latency(50) == pytest.approx(0.2)
    assert measurement.inter_token_latency(25) == pytest.approx(0.1)
    assert measurement.pause(99) == 0.6


def test_a_level_keeps_kinds_apart_and_adds_them_up():
    level = Level(2)
    level.add_batch("on", [JSON, CODE], [drafted(started=1.0), drafted(started=1.5)])
    assert level.kinds == ["json", "code", ALL_KINDS]
    assert level.measurement("json", "on").num_tokens == 4
    assert level.measurement(ALL_KINDS, "on").num_tokens == 8
    # From the start of the first to the end of the last.
    assert level.total_tokens_per_second("on") == pytest.approx(8 / 1.5)


def test_a_reader_counts_tokens_where_their_text_came():
    reader = AnswerReader(started=10.0)
    reader.add(Chunk([Choice("a")], usage(1)), 10.5)
    reader.add(Chunk([Choice("")], usage(2)), 10.6)
    reader.add(Chunk([Choice("bc")], usage(4)), 11.0)
    reader.add(END, 11.0)
    read = reader.finish(11.0)
    assert read.text == "abc"
    assert [(piece.seconds, piece.num_tokens) for piece in read.pieces] == [(0.5, 1), (0.5, 3)]
    assert (read.num_tokens, read.num_cached_tokens, read.seconds) == (4, 2, 1.0)


def test_a_reader_refuses_errors_and_answers_that_say_nothing_of_drafts():
    with pytest.raises(BenchError, match="too busy"):
        AnswerReader(0.0).add(Chunk(error=Error("too busy")), 1.0)
    with pytest.raises(BenchError, match="Tandem server"):
        AnswerReader(0.0).finish(1.0)


def test_a_report_says_speed_ratio_and_acceptance():
    lines = report().text().splitlines()
    assert "| json    | 2.0 | 4.0 |  2.00 |" in lines
    json_on = next(line for line in lines if line.startswith("| json    | on "))
    assert [cell.strip() for cell in json_on.split("|")[3:-1]] == [
        *("400.0", "200.0", "200.0", "600.0", "600.0"),
        *("50%", "3.00", "4.00"),
    ]
    assert lines[-1] == "All sides wrote the same bytes, in all 4 answers."


def test_a_report_of_several_levels_adds_up_each():
    text = report(1, 2).text()
    assert "2 requests at a time" in text
    # Two prompts of 8 tokens in batches of 2 and of 1 seconds.
    assert "| 2         | 4.0 | 8.0 |  2.00 |" in text.splitlines()


def test_the_data_of_a_report_is_json_with_the_same_numbers():
    data = json.loads(json.dumps(report(1).data()))
    assert data["same_bytes"] is True
    (level,) = data["levels"]
    assert level["kinds"]["json"]["on"]["tokens_per_second"] == 4.0
    assert level["kinds"]["json"]["on"]["acceptance_per_position"] == [1.0, 1.0]
    assert level["kinds"][ALL_KINDS]["off"]["num_tokens"] == 8


def test_a_table_is_aligned_and_its_bars_are_escaped():
    assert format_table(["a|b", "n"], [["x", "10"]], num_names=1).splitlines() == [
        "| a\\|b |  n |",
        "| ---- | -: |",
        "| x    | 10 |",
    ]


def test_a_plot_is_two_files_and_the_same_ones_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    files = save_plot(report(1, 2), tmp_path / "plot.png")
    assert files == [tmp_path / "plot.png", tmp_path / "plot.svg"]
    png, svg = (file.read_bytes() for file in files)
    assert png.startswith(b"\x89PNG")
    for words in (b"json", b"off", b"on"):
        assert words in svg
    save_plot(report(1, 2), tmp_path / "plot")
    assert files[1].read_bytes() == svg
