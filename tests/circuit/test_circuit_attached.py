"""Queries behind adapters: frames or register writes in, register reads out, against the local engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from amaranth.sim import Simulator

from frames import Frame, pack_tuple
from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.picture import draw_compiled
from handshake.engines.circuit.report import report
from handshake.errors import UnsupportedError
from handshake.operators.query import Query
from handshake.plan.query import parse_query

TEXT = """CREATE INPUT STREAM Trades (Symbol string(4), Price int, Ts int) TIMESTAMP BY Ts;
SELECT Symbol, count() AS n, max(Price) AS high FROM Trades [SIZE 4 ADVANCE 2 TIME]
GROUP BY Symbol INTO Highs"""
ROWS = [
    ("UBSN", 5, 0),
    ("ABBN", -7, 1),
    ("UBSN", 7, 2),
    ("NESN", 1, 2),
    ("UBSN", 9, 5),
    ("UBSN", 1, 40),
    ("UBSN", 1, 80),
]


def expected_highs(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    columns = {
        name: list(values)
        for name, values in zip(("Symbol", "Price", "Ts"), zip(*rows, strict=True), strict=True)
    }
    query = Query(parse_query(TEXT))
    batches = [*query.push("Trades", pa.table(columns))["Highs"], *query.finish()["Highs"]]
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


class Bus:
    """The CPU's side of the bus, by the register map of the circuit."""

    def __init__(self, ctx: Any, top: Any) -> None:
        self.ctx, self.top = ctx, top
        self.at = {each.name: each.address for each in top.registers()}

    async def read(self, name: str) -> int:
        self.ctx.set(self.top.cpu_address, self.at[name])
        self.ctx.set(self.top.cpu_read, 1)
        value = int(self.ctx.get(self.top.cpu_read_data))
        await self.ctx.tick()
        self.ctx.set(self.top.cpu_read, 0)
        return value

    async def write(self, name: str, value: int) -> None:
        self.ctx.set(self.top.cpu_address, self.at[name])
        self.ctx.set(self.top.cpu_write_data, value)
        self.ctx.set(self.top.cpu_write, 1)
        await self.ctx.tick()
        self.ctx.set(self.top.cpu_write, 0)

    async def results(self, compiled: Compiled, name: str) -> list[tuple[Any, ...]]:
        """Read results until the interrupt has been low for a while."""
        row, found, quiet = compiled.outputs[name], [], 0
        words = sum(1 for each in self.at if each.startswith(f"{name}.word"))
        while quiet < 80:
            if self.ctx.get(self.top.cpu_interrupt):
                status = await self.read(f"{name}.status")
                parts = [await self.read(f"{name}.word{k}") for k in range(words)]
                if status & 1:
                    found.append(row.unpack(sum(part << 32 * k for k, part in enumerate(parts))))
                quiet = 0
            else:
                await self.ctx.tick()
                quiet += 1
        return found


def drive(top: Any, bench: Any) -> None:
    simulator = Simulator(top)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


def compiled_for(**adapters: Any) -> Compiled:
    return compile_plan(parse_query(TEXT), Bounds(groups=4, write_cycles=2), **adapters)


def test_frames_in_registers_out() -> None:
    compiled = compiled_for(input_adapter="udp", output_adapter="cpu", udp_port=7000, delay=3)
    top, found = compiled.with_adapters(), list[tuple[Any, ...]]()
    row = compiled.inputs["Trades"]

    async def bench(ctx: Any) -> None:
        bus = Bus(ctx, top)
        wrong_port = Frame(pack_tuple(row, ROWS[0]), port=7001)
        broken = Frame(pack_tuple(row, ROWS[0]), port=7000, udp_sum=0x1234)
        frames = [Frame(pack_tuple(row, each), port=7000) for each in ROWS]
        for frame in (wrong_port, broken, *frames):
            data = frame.bytes()
            for k, byte in enumerate(data):
                ctx.set(top.network.payload.as_value(), byte)
                ctx.set(top.network.valid, 1)
                ctx.set(top.network.eos, k == len(data) - 1)
                await ctx.tick()
            ctx.set(top.network.valid, 0)
            ctx.set(top.network.eos, 0)
            found.extend(await bus.results(compiled, "Highs"))
        assert await bus.read("Trades_datagrams") == len(ROWS)
        assert await bus.read("Trades_malformed") == 1
        assert await bus.read("Trades_other") == 1
        assert await bus.read("overflow") == 0

    drive(top, bench)
    assert found
    # Datagrams do not end a stream, so the windows of the last row stay open.
    assert Counter(found) == Counter(expected_highs(ROWS)) - Counter(expected_highs(ROWS[-1:]))


def test_register_writes_in_registers_out() -> None:
    compiled = compiled_for(input_adapter="cpu", output_adapter="cpu")
    top, found = compiled.with_adapters(), list[tuple[Any, ...]]()
    row = compiled.inputs["Trades"]

    async def bench(ctx: Any) -> None:
        bus = Bus(ctx, top)
        for each in ROWS:
            payload = row.pack(each)
            for k in range(-(-row.bits // 32)):
                await bus.write(f"Trades.word{k}", payload >> 32 * k & 0xFFFFFFFF)
            await bus.write("Trades.send", 0b01)
            found.extend(await bus.results(compiled, "Highs"))
        assert not await bus.read("Trades.send")
        await bus.write("Trades.send", 0b10)
        found.extend(await bus.results(compiled, "Highs"))
        assert await bus.read("Trades_refused") == 0

    drive(top, bench)
    assert sorted(found) == expected_highs(ROWS)


def test_adapters_and_delay_are_in_the_report_the_picture_and_the_verilog() -> None:
    plain = compiled_for()
    compiled = compiled_for(input_adapter="udp", output_adapter="cpu", delay=3)
    assert compiled.latency["Highs"] == plain.latency["Highs"] + 3 + 2
    facts = dict(report(compiled, synthesis=False))
    assert facts["Trades by UDP"] == "port 5001, 12 bytes per tuple, one byte per cycle"
    assert facts["register 0"].startswith("read Highs.status: bit 0: a tuple")
    assert [line for line in facts.values() if "Trades_malformed" in line]
    picture = draw_compiled(compiled)
    for shown in ("network", "UDP port 5001", "to the CPU", "delay of 3 cycles"):
        assert shown in picture
    assert "from the CPU" in draw_compiled(compiled_for(input_adapter="cpu"))
    text = compiled.verilog()
    for module in ("module query(", "module udp_parser(", "module cpu_reader(", "module delay("):
        assert module in text
    assert "input [7:0] network__payload" in text


def test_streams_without_adapters_stay_as_they_are() -> None:
    assert (
        compiled_for().verilog()
        == compile_plan(parse_query(TEXT), Bounds(groups=4, write_cycles=2)).verilog()
    )
    half = compiled_for(output_adapter="cpu").verilog()
    assert "Trades__payload" in half
    assert "Highs__payload" not in half.split("module query(")[1].split(");")[0]


def test_a_port_of_no_datagram_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"^UDP port 65536 is not between 1 and 65535; choose another"):
        compiled_for(input_adapter="udp", udp_port=65536)
