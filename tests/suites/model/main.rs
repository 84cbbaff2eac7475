//! The handshake, model-checked: infrop's and node-agent's real decisions, with everything around them made small.

mod agent;
mod explore;
mod facts;
mod hosts;
mod infrop;
mod invariants;
mod mutations;
mod process;
mod scenarios;
mod state;
mod world;

use std::{process::ExitCode, time::Duration};

use tests::harness::{Case, Tier, suite};

/// All of it takes less than a minute; the rest is for a machine that does something else as well.
const LIMIT: Duration = Duration::from_mins(4);

fn main() -> ExitCode {
    let cases = scenarios::ALL.iter().map(|scenario| {
        let (scenario, name) = (*scenario, format!("holds_with_{}", scenario.name));
        Case::new(Tier::T1, &name, LIMIT, async move || scenarios::holds(scenario))
    });
    let guards =
        Case::new(Tier::T1, "each_guard_is_missed", LIMIT, async || scenarios::each_guard_is_missed());
    suite(cases.chain([guards]))
}
