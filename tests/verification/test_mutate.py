"""A slice of the mutations; ``make mutate`` draws more."""

import pytest
from planting import OR_FOR_AND_IN_STAGE_0

from lrbi.errors import CheckFailedError
from verification import mutate
from verification.equivalence import graph_of, question, read, seen


def test_mutations_are_caught_or_can_never_be_seen(tmp_path):
    design = mutate.stream_design()
    verdicts = mutate.measure(design, 12, tmp_path)
    assert len(verdicts) == 12
    assert {verdict.mutation.area for verdict in verdicts} == set(design.areas)
    assert [each for each in verdicts if not each.caught_by and each.equivalent is not True] == []
    assert sum(bool(verdict.caught_by) for verdict in verdicts) > 8


def test_a_fault_in_the_array_fails_the_baseline(tmp_path):
    faulty = mutate.stream_design(OR_FOR_AND_IN_STAGE_0)
    with pytest.raises(CheckFailedError, match="The bench fails without a mutation: rank_one"):
        mutate.measure(faulty, 4, tmp_path)


def test_mutations_are_drawn_from_all_areas_and_again_the_same(tmp_path):
    whole = mutate.stream_design()
    text, found = mutate.mutate(tmp_path, whole, 40)
    assert (text, found) == mutate.mutate(tmp_path, whole, 40)
    assert [mutation.number for mutation in found] == list(range(1, 41))
    assert all(mutation.near and mutation.line for mutation in found)
    assert found != mutate.mutate(tmp_path, whole, 40, seed=2)[1]


NETLIST = """
module mutated (input clk, input [1:0] mutation, input up, output wrapped);
  // Counts 0, 1, 2, 0 ... ; mutation 1 changes what follows 3, which never comes; 2 what follows 1;
  // 3 a register that nothing reads.
  reg [1:0] count = 0;
  reg idle = 0;
  assign wrapped = up && count == 2;
  always @(posedge clk) begin
    idle <= up ^ (mutation == 3);
    if (up)
      case (count)
        0: count <= 1;
        1: count <= mutation == 2 ? 0 : 2;
        2: count <= 0;
        3: count <= mutation == 1 ? 1 : 0;
      endcase
  end
endmodule
"""
WRAPPER = """
module wrapper (input clk, input [1:0] mutation, input up, output wrapped);
  (* keep *) mutated mutated (.clk(clk), .mutation(mutation), .up(up), .wrapped(wrapped));
endmodule
"""


def test_what_can_be_seen_is_told_from_what_cannot(tmp_path):
    graph = graph_of(tmp_path, NETLIST, WRAPPER)
    assert seen(tmp_path, graph, 0) == ("never", [])
    assert seen(tmp_path, graph, 1) == ("never", [])
    said, own = seen(tmp_path, graph, 2)
    assert said == "output wrapped in clock 2"
    assert own == ["count"]


def test_a_register_that_differs_but_is_not_seen_is_the_mutants_own(tmp_path):
    text = NETLIST.replace("up && count == 2", "up && count == 2 && !(idle && !idle)")
    graph = graph_of(tmp_path, text.replace("reg idle", "(* keep *) reg idle"), WRAPPER)
    assert seen(tmp_path, graph, 3)[0] == "never"


def test_a_netlist_of_two_clocks_is_refused(tmp_path):
    text = NETLIST.replace("@(posedge clk)", "@(posedge gated)")
    text = text.replace("  reg idle", "  wire gated = mutation != 3 && clk;\n  reg idle")
    text = text.replace(
        "endmodule", "reg q; always @(posedge clk) q <= up;\nassign other = q;\nendmodule"
    ).replace("wrapped);", "wrapped, output other);", 1)
    wrapper = WRAPPER.replace("output wrapped)", "output wrapped, output other)").replace(
        ".wrapped(wrapped)", ".wrapped(wrapped), .other(other)"
    )
    with pytest.raises(ValueError, match="must have one clock, not several"):
        graph_of(tmp_path, text, wrapper)


def test_the_graph_is_read_as_written():
    graph = read("aag 4 2 1 1 1\n2\n4\n6 8\n9\n8 2 6\ni0 mutation[0]\ni1 a\nl0 x.r[3]\no0 y\n")
    assert graph.inputs == {"mutation[0]": 2, "a": 4}
    assert graph.latches == [("x.r[3]", 6, 8)]
    assert graph.outputs == {"y": 9}
    assert graph.gates == [(8, 2, 6)]
    assert question(graph, 0, [])[1] == []
    assert question(graph, 1, [])[1] == ["output y", "register x.r"]
