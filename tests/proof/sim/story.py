"""One seed's story: a safety phase full of faults, then everything heals and must move on."""

from __future__ import annotations

from tests.proof.sim import (
    closing,
    faults,
    healing,
    late_newcomers,
    plots,
    replacing,
    silent_members,
)
from tests.proof.sim.scene import Scene


class Story(Scene):
    """A scene, and what happens in it."""

    def run(self) -> None:
        """Run the seed; raise Violation, NoProgress, or any error of the code under test."""
        world, options = self.world, self.world.options
        world.say("----", f"seed {world.seed} {options}")
        faults.schedule(self)
        plots.schedule(self)
        if options.replaces:
            replacing.schedule(self)
        if options.late:
            late_newcomers.schedule(self)
        if options.repairs:
            silent_members.schedule(self)
        if options.closes:
            closing.schedule(self)
        for _ in range(options.proposers):
            self.start_proposer()
        self._write_for_ever()
        world.run_until(options.safety_s * 1000)
        healing.heal(self)
        demand = closing.demand_close if options.closes else healing.demand_progress
        demand(self)

    def _write_for_ever(self) -> None:
        if not self.world.is_calm:  # else the plot says who writes
            for primary in self.primaries[-2:] if self.writing is None else self.writing:
                primary.write()
        mean_ms = 1000 / self.world.options.records
        self.world.later(self.world.random.expovariate(1 / mean_ms), self._write_for_ever)
