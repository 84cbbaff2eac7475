//! Which states are explored, and what the loss of each guard is looked for in.

use std::fmt::Write as _;

use anyhow::{bail, ensure};

use crate::{
    explore::explore,
    facts::Shape,
    mutations::Guard,
    state::{Id, Nuisances},
    world::{Scenario, World},
};

const NONE: Nuisances = Nuisances {
    crashes: 0,
    seconds: 0,
    held: 0,
    agent_crashes: 0,
    failures: 0,
    gone: 0,
    deaths: 0,
    vain_looks: 0,
    silences: 0,
    cordons: 0,
    uncordons: 0,
    withdrawals: 0,
    pauses: 0,
    resumes: 0,
};

const QUIET: Scenario = Scenario {
    name: "nothing",
    shape: Shape::Mixed,
    nuisances: NONE,
    broken: 0,
    gentle: false,
    stubborn: 0,
    cordoned: 0,
    paused: 0,
    drifted: 0,
    by_hand: 0,
};

const CRASHES: Scenario = Scenario {
    name: "crashes_and_failures",
    nuisances: Nuisances { crashes: 1, agent_crashes: 1, failures: 1, ..NONE },
    ..QUIET
};

const TWO: Scenario = Scenario { name: "two_infrops", nuisances: Nuisances { seconds: 1, ..NONE }, ..QUIET };

const PERSON: Scenario = Scenario {
    name: "a_person",
    nuisances: Nuisances { cordons: 1, withdrawals: 1, pauses: 1, ..NONE },
    ..QUIET
};

const CORDONED: Scenario = Scenario {
    name: "a_foreign_cordon",
    nuisances: Nuisances { crashes: 1, held: 1, ..NONE },
    cordoned: 0b010,
    ..QUIET
};

const BY_HAND: Scenario = Scenario {
    name: "a_worker_by_hand",
    nuisances: Nuisances { crashes: 1, failures: 1, ..NONE },
    by_hand: 0b010,
    ..QUIET
};

/// Nobody cordoned it: only what its agent says tells that it is away.
const BY_HAND_WITHDRAWN: Scenario = Scenario {
    name: "a_worker_by_hand_whose_permit_goes",
    nuisances: Nuisances { withdrawals: 1, crashes: 1, ..NONE },
    by_hand: 0b010,
    ..QUIET
};

const DRIFTED: Scenario = Scenario {
    name: "hosts_changed_by_hand",
    nuisances: Nuisances { crashes: 1, held: 1, agent_crashes: 1, ..NONE },
    drifted: 0b011,
    ..QUIET
};

const SILENCE: Scenario = Scenario {
    name: "silence",
    nuisances: Nuisances { silences: 1, withdrawals: 1, agent_crashes: 1, ..NONE },
    ..QUIET
};

const BROKEN: Scenario = Scenario {
    name: "failing_software",
    nuisances: Nuisances { crashes: 1, agent_crashes: 1, ..NONE },
    broken: 0b010,
    ..QUIET
};

/// A person lifts infrop's cordon, and cordons again.
const LIFTED: Scenario = Scenario {
    name: "a_cordon_that_a_person_lifts",
    nuisances: Nuisances { uncordons: 1, cordons: 1, ..NONE },
    broken: 0b010,
    ..QUIET
};

const RESTART: Scenario = Scenario {
    name: "restarts",
    shape: Shape::Restart,
    nuisances: Nuisances { gone: 1, agent_crashes: 1, crashes: 1, ..NONE },
    ..QUIET
};

/// Nobody wants anything of a node that is not there.
const GONE_WITHDRAWN: Scenario = Scenario {
    name: "a_restart_that_never_ends_and_a_permit_that_goes",
    shape: Shape::Restart,
    nuisances: Nuisances { gone: 1, withdrawals: 1, ..NONE },
    ..QUIET
};

const INEFFECTIVE: Scenario = Scenario {
    name: "restarts_in_vain",
    shape: Shape::Restart,
    nuisances: Nuisances { agent_crashes: 1, crashes: 1, ..NONE },
    stubborn: 0b010,
    ..QUIET
};

/// A permit comes back while the agent is still in a step of the one before, and pods stay.
const HELD: Scenario = Scenario {
    name: "a_withdrawn_permit_and_pods_that_stay",
    nuisances: Nuisances { withdrawals: 1, held: 1, ..NONE },
    ..QUIET
};

/// No cordon tells that a node is away.
const GENTLE: Scenario = Scenario {
    name: "changes_that_need_no_drain",
    nuisances: Nuisances { withdrawals: 1, crashes: 1, ..NONE },
    gentle: true,
    ..QUIET
};

const PAUSED: Scenario = Scenario {
    name: "a_pause_that_ends",
    nuisances: Nuisances { resumes: 1, crashes: 1, ..NONE },
    paused: 0b010,
    ..QUIET
};

/// Two processes that would begin different nodes: one saw the first node paused.
const RESUMED: Scenario = Scenario {
    name: "a_pause_that_ends_and_two_infrops",
    shape: Shape::Restart,
    nuisances: Nuisances { seconds: 1, resumes: 1, ..NONE },
    paused: 0b010,
    ..QUIET
};

const PLANES: Scenario = Scenario {
    name: "three_control_planes",
    shape: Shape::Planes,
    nuisances: Nuisances { deaths: 1, cordons: 1, uncordons: 1, ..NONE },
    ..QUIET
};

const PLANES_SILENT_ETCD: Scenario = Scenario {
    name: "three_control_planes_and_an_etcd_that_cannot_be_asked",
    shape: Shape::Planes,
    nuisances: Nuisances { vain_looks: 1, ..NONE },
    ..QUIET
};

const PLANES_TWO: Scenario = Scenario {
    name: "three_control_planes_and_two_infrops",
    shape: Shape::Planes,
    nuisances: Nuisances { seconds: 1, ..NONE },
    ..QUIET
};

const PLANES_CRASHES: Scenario = Scenario {
    name: "three_control_planes_crashes_and_failures",
    shape: Shape::Planes,
    nuisances: Nuisances { crashes: 1, agent_crashes: 1, failures: 1, ..NONE },
    ..QUIET
};

const PLANES_PERSON: Scenario = Scenario {
    name: "three_control_planes_and_a_person",
    shape: Shape::Planes,
    nuisances: Nuisances { withdrawals: 1, pauses: 1, crashes: 1, ..NONE },
    ..QUIET
};

const PLANES_SILENCE: Scenario = Scenario {
    name: "three_control_planes_and_silence",
    shape: Shape::Planes,
    nuisances: Nuisances { silences: 1, withdrawals: 1, agent_crashes: 1, ..NONE },
    ..QUIET
};

const PLANES_BROKEN: Scenario = Scenario {
    name: "three_control_planes_failing_software",
    shape: Shape::Planes,
    nuisances: Nuisances { crashes: 1, agent_crashes: 1, ..NONE },
    broken: 0b010,
    ..QUIET
};

const PLANES_RESTART: Scenario = Scenario {
    name: "three_control_planes_restart",
    shape: Shape::PlanesRestart,
    nuisances: Nuisances { gone: 1, agent_crashes: 1, crashes: 1, ..NONE },
    ..QUIET
};

/// All that hold.
pub(crate) const ALL: &[Scenario] = &[
    QUIET,
    CRASHES,
    TWO,
    PERSON,
    CORDONED,
    BY_HAND,
    BY_HAND_WITHDRAWN,
    DRIFTED,
    SILENCE,
    BROKEN,
    LIFTED,
    RESTART,
    GONE_WITHDRAWN,
    INEFFECTIVE,
    HELD,
    GENTLE,
    PAUSED,
    RESUMED,
    PLANES,
    PLANES_SILENT_ETCD,
    PLANES_TWO,
    PLANES_CRASHES,
    PLANES_PERSON,
    PLANES_SILENCE,
    PLANES_BROKEN,
    PLANES_RESTART,
];

/// Where the loss of each guard shows, and as what.
const GUARDS: &[(Guard, Scenario, &str)] = &[
    (Guard::Capacity, QUIET, "I1"),
    (Guard::OwnPermits, PERSON, "I1"),
    (Guard::PlanesOneByOne, PLANES, "I2"),
    (Guard::NodeReady, GONE_WITHDRAWN, "I1"),
    (Guard::EtcdWell, PLANES, "I3"),
    (Guard::EtcdAnswers, PLANES_SILENT_ETCD, "I3"),
    (Guard::EtcdAnew, PLANES, "I3"),
    (Guard::EtcdAge, PLANES, "I3"),
    (Guard::EtcdSaved, QUIET, "I3"),
    (Guard::PlanesFirst, QUIET, "I6"),
    (Guard::Announced, RESUMED, "I1"),
    (Guard::Fenced, RESUMED, "I1"),
    (Guard::Precondition, PERSON, "I5"),
    (Guard::OlderEvents, PAUSED, "I1"),
    (Guard::CordonMark, CORDONED, "I5"),
    (Guard::LeftMark, LIFTED, "I5"),
    (Guard::KubeletVersion, QUIET, "I1"),
    (Guard::KubeletBoot, RESTART, "I1"),
    (Guard::AgentsWord, QUIET, "I1"),
    (Guard::Versions, QUIET, "I8"),
    (Guard::QuarantineWithdrawn, BROKEN, "I8"),
    (Guard::CordonFirst, QUIET, "I4"),
    (Guard::PodsGone, QUIET, "I4"),
    (Guard::Disruption, GENTLE, "I1"),
    (Guard::AgentsAtWork, GENTLE, "I1"),
    (Guard::SkippedWaits, HELD, "I1"),
    (Guard::InfropPause, PERSON, "I4"),
    (Guard::PermittedPlan, DRIFTED, "I4"),
    (Guard::AgentPermit, DRIFTED, "I4"),
    (Guard::AgentReads, PERSON, "I4"),
    (Guard::AgentPause, PERSON, "I4"),
    (Guard::AgentRemembers, SILENCE, "I4"),
    (Guard::AgentSkew, BY_HAND, "I7"),
    (Guard::AgentOrder, QUIET, "I7"),
    (Guard::AgentAttempts, BROKEN, "I8"),
    (Guard::AgentQuarantine, BROKEN, "I8"),
    (Guard::AgentReboots, INEFFECTIVE, "I8"),
];

/// Every invariant holds in every state of a scenario.
pub(crate) fn holds(scenario: Scenario) -> anyhow::Result<()> {
    let found = explore(&mut World::new(scenario, None)?)?;
    println!(
        "{:40} {:8} states {:9} transitions {:4} deep {:5.1} s",
        scenario.name,
        found.states,
        found.transitions,
        found.depth,
        found.took.as_secs_f64()
    );
    if let Some((broken, way)) = found.broken {
        let mut text = broken.to_string();
        for one in way {
            write!(text, "\n    {one}")?;
        }
        bail!(text);
    }
    ensure!(found.states > Id::ALL.len(), "nothing happened");
    Ok(())
}

/// Without any one guard an invariant breaks.
pub(crate) fn each_guard_is_missed() -> anyhow::Result<()> {
    let mut unnoticed = Vec::new();
    for (guard, scenario, invariant) in GUARDS {
        let found = explore(&mut World::new(*scenario, Some(*guard))?)?;
        match found.broken {
            Some((broken, way)) => {
                println!("{guard:20} {:3} moves: {broken} ({:.1} s)", way.len(), found.took.as_secs_f64());
                if broken.invariant != *invariant {
                    unnoticed.push(format!("{guard}: {invariant} was to break, not {broken}: {way:?}"));
                }
            }
            None => unnoticed.push(format!("{guard}: nothing breaks without it")),
        }
    }
    ensure!(unnoticed.is_empty(), unnoticed.join("\n"));
    Ok(())
}
