//! A cluster, its hosts and the processes that work on it, as small as the handshake allows.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

/// One of the three nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Id {
    A,
    B,
    C,
}

impl Id {
    pub(crate) const ALL: [Self; 3] = [Self::A, Self::B, Self::C];

    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// One of the two processes of infrop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Who {
    #[default]
    First,
    Second,
}

impl Who {
    pub(crate) const ALL: [Self; 2] = [Self::First, Self::Second];
}

/// Something of each node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Three<T> {
    a: T,
    b: T,
    c: T,
}

impl<T> Three<T> {
    pub(crate) fn from_fn(make: impl Fn(Id) -> T) -> Self {
        Self { a: make(Id::A), b: make(Id::B), c: make(Id::C) }
    }

    pub(crate) fn at(&self, id: Id) -> &T {
        match id {
            Id::A => &self.a,
            Id::B => &self.b,
            Id::C => &self.c,
        }
    }

    pub(crate) fn at_mut(&mut self, id: Id) -> &mut T {
        match id {
            Id::A => &mut self.a,
            Id::B => &mut self.b,
            Id::C => &mut self.c,
        }
    }
}

/// Who cordoned a node, as its Node says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Cordon {
    #[default]
    None,
    Rollout,
    Foreign,
    /// It was a rollout's, and a person lifted it; the mark is there.
    Lifted,
}

impl Cordon {
    /// Whether pods may not come.
    pub(crate) fn is_on(self) -> bool {
        matches!(self, Self::Rollout | Self::Foreign)
    }
}

/// The agent's phase, as far as infrop tells phases apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Said {
    #[default]
    Anything,
    /// It is in the middle of something.
    Working,
    Quarantined,
    Refused,
}

/// A Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that change one by one")]
pub(crate) struct Node {
    pub(crate) permit: bool,
    /// Whether the permit is for the plan; it is not before infrop wrote that.
    pub(crate) armed: bool,
    /// Whether its plan is the target; there never is another one.
    pub(crate) plan: bool,
    pub(crate) cordon: Cordon,
    /// Whether etcd's data was saved there before the new version.
    pub(crate) saved: bool,
    pub(crate) paused: bool,
    /// By its agent: `ready`, `plan-observed`, the phase, and for each software whether it is in the desired version.
    pub(crate) ready: bool,
    pub(crate) observed: bool,
    pub(crate) said: Said,
    pub(crate) current: u8,
    pub(crate) agent_boot: u8,
    /// By its kubelet, or for it: the condition Ready, whether the version is the new one, the boot.
    pub(crate) up: bool,
    pub(crate) kubelet: bool,
    pub(crate) kubelet_boot: u8,
}

impl Node {
    pub(crate) fn is_away(&self) -> bool {
        self.permit || !self.up || self.cordon.is_on() || self.said == Said::Working
    }
}

/// In one word: a state has nine of them, and most of the time goes into hashes.
impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { permit, armed, plan, cordon, paused, ready, observed, said, .. } = *self;
        let Self { current, agent_boot, up, kubelet, kubelet_boot, saved, .. } = *self;
        state.write_u64(
            u64::from(permit)
                | u64::from(plan) << 1
                | u64::from(paused) << 2
                | u64::from(ready) << 3
                | u64::from(observed) << 4
                | u64::from(up) << 5
                | u64::from(kubelet) << 6
                | u64::from(armed) << 7
                | (cordon as u64) << 8
                | (said as u64) << 16
                | u64::from(current) << 24
                | u64::from(agent_boot) << 32
                | u64::from(kubelet_boot) << 40
                | u64::from(saved) << 48,
        );
    }
}

/// Whether a host is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Life {
    #[default]
    Up,
    /// Between two boots.
    Down,
    /// For ever.
    Gone,
}

/// The step that an agent has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Open {
    #[default]
    None,
    /// By the software's bit.
    Change(u8),
    Reboot,
}

/// An agent's journal. The only plan there is is the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that change one by one")]
pub(crate) struct Book {
    pub(crate) active: bool,
    pub(crate) attempt: u8,
    pub(crate) open: Open,
    /// The boot in which the restart was ordered, and one.
    pub(crate) rebooted_from: u8,
    pub(crate) withdrawn: bool,
    pub(crate) observed: bool,
    pub(crate) ready: bool,
    pub(crate) quarantine: bool,
    pub(crate) unverified: bool,
}

/// A host and its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that change one by one")]
pub(crate) struct Host {
    pub(crate) life: Life,
    /// The software that was changed, by bits.
    pub(crate) changed: u8,
    pub(crate) boot: u8,
    pub(crate) book: Book,
    /// Whether its agent does not reach the API server.
    pub(crate) silent: bool,
    /// The Node's word as the agent last heard it: kept only where a scenario has silence, or a mutation needs it.
    pub(crate) heard: Word,
    /// For invariants only: the permit is infrop's; a person's cordon is on the node, whatever its mark says.
    pub(crate) given: bool,
    pub(crate) foreign: bool,
    /// For invariants only: whether pods that have to go are there. They come whenever they may.
    pub(crate) pods: bool,
}

/// What a Node says to its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Word {
    /// For the plan there is.
    pub(crate) permit: bool,
    pub(crate) plan: bool,
    pub(crate) paused: bool,
}

impl Word {
    pub(crate) fn of(node: &Node) -> Self {
        Self { permit: node.permit && node.armed, plan: node.plan, paused: node.paused }
    }

    pub(crate) fn is_permit(self) -> bool {
        self.permit && self.plan && !self.paused
    }
}

/// What a process of infrop has under way with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Busy {
    #[default]
    Idle,
    /// A permit that is yet to be announced.
    Permit,
    /// One that was announced.
    Announced,
    /// etcd's data is being saved there.
    Save,
    Cordon,
    Drain,
    /// One of a node that pods could come to meanwhile.
    OpenDrain,
    Plan,
    Uncordon,
    Unmark,
    Withdraw,
    Fence,
}

/// A node as a process of infrop sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that change one by one")]
pub(crate) struct Seen {
    pub(crate) node: Node,
    /// Whether nobody wrote the Node since.
    pub(crate) fresh: bool,
    pub(crate) busy: Busy,
    /// Whether nobody wrote the Node since the action's decision saw it.
    pub(crate) valid: bool,
    pub(crate) emptied: bool,
    pub(crate) checked: bool,
    pub(crate) skipped: bool,
}

/// Where a process of infrop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Stage {
    #[default]
    Absent,
    /// It has taken the Lease over and listed no Nodes yet.
    Taken,
    Running,
    /// It ended, and what it sent may still arrive.
    Late,
}

/// What a process knows of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Etcd {
    #[default]
    Unknown,
    /// Which voters are well, by bits; whether that was seen long ago; and, for invariants only, whether a control
    /// plane was begun since.
    Voters { well: u8, old: bool, used: bool },
    /// It could not be asked; and whether that was long ago.
    Silent { old: bool },
}

impl Etcd {
    /// Time passes: what was seen is old.
    pub(crate) fn age(&mut self) {
        if let Self::Voters { old, .. } | Self::Silent { old } = self {
            *old = true;
        }
    }

    /// Whether it was looked at, and not long ago.
    pub(crate) fn is_recent(self) -> bool {
        matches!(self, Self::Voters { old: false, .. } | Self::Silent { old: false })
    }
}

/// A process of infrop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Process {
    pub(crate) stage: Stage,
    pub(crate) nodes: Three<Seen>,
    /// What a process before it announced.
    pub(crate) claims: u8,
    /// What it announced and ended, and did not take back yet.
    pub(crate) announced: u8,
    pub(crate) etcd: Etcd,
    pub(crate) looking: bool,
    /// Whether it has waited as long as it may.
    pub(crate) impatient: bool,
    /// How many watch events it still gets after another process took over, before it notices that.
    pub(crate) events: u8,
}

/// The Lease in which permits are announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Lease {
    pub(crate) holder: Who,
    pub(crate) nodes: u8,
}

/// How often each nuisance may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Nuisances {
    /// infrop ends at any point.
    pub(crate) crashes: u8,
    /// Another infrop starts beside one that works.
    pub(crate) seconds: u8,
    /// Pods do not go.
    pub(crate) held: u8,
    /// An agent ends in a step.
    pub(crate) agent_crashes: u8,
    /// A step fails.
    pub(crate) failures: u8,
    /// A restart never ends, or a host goes by itself.
    pub(crate) gone: u8,
    pub(crate) deaths: u8,
    /// etcd cannot be asked.
    pub(crate) vain_looks: u8,
    /// An agent does not reach the API server for a while.
    pub(crate) silences: u8,
    /// Persons.
    pub(crate) cordons: u8,
    pub(crate) uncordons: u8,
    pub(crate) withdrawals: u8,
    pub(crate) pauses: u8,
    pub(crate) resumes: u8,
}

/// Everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) nodes: Three<Node>,
    pub(crate) hosts: Three<Host>,
    pub(crate) first: Process,
    pub(crate) second: Process,
    pub(crate) lease: Lease,
    pub(crate) left: Nuisances,
}

impl State {
    pub(crate) fn process(&self, who: Who) -> &Process {
        match who {
            Who::First => &self.first,
            Who::Second => &self.second,
        }
    }

    /// The process beside one.
    pub(crate) fn other(&self, who: Who) -> &Process {
        match who {
            Who::First => &self.second,
            Who::Second => &self.first,
        }
    }

    pub(crate) fn process_mut(&mut self, who: Who) -> &mut Process {
        match who {
            Who::First => &mut self.first,
            Who::Second => &mut self.second,
        }
    }

    /// Someone writes a Node: from then on no older sight of it is good for a write.
    pub(crate) fn write(&mut self, id: Id, change: impl FnOnce(&mut Node)) {
        change(self.nodes.at_mut(id));
        for process in [&mut self.first, &mut self.second] {
            let seen = process.nodes.at_mut(id);
            (seen.fresh, seen.valid) = (false, false);
        }
    }

    /// The same, if it says anything new.
    pub(crate) fn publish(&mut self, id: Id, change: impl FnOnce(&mut Node)) {
        let mut node = *self.nodes.at(id);
        change(&mut node);
        if node != *self.nodes.at(id) {
            self.write(id, |old| *old = node);
        }
    }
}

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    /// infrop: its next write arrives, or its look at pods or etcd ends.
    Arrives(Who, Id),
    /// A write of a process that ended is lost.
    Lost(Who, Id),
    LooksAtEtcd(Who),
    LooksInVain(Who),
    /// The list of all Nodes, after a start.
    Lists(Who),
    /// A watch event.
    Sees(Who, Id),
    /// An older event, which was overtaken.
    SeesOlder(Who, Id),
    Starts(Who),
    Crashes(Who),
    /// Another process took over, and it notices.
    Notices(Who),
    /// What it saw of etcd is old; it has waited long enough.
    TimePasses(Who),
    Impatient(Who),
    /// Its pods do not go.
    Held(Who, Id),
    /// node-agent: decides and does what needs no time.
    Passes(Id),
    /// Its step ends.
    StepEnds(Id),
    StepFails(Id),
    /// It ends: before or after what the step does.
    EndsBefore(Id),
    EndsAfter(Id),
    EndsUnsaved(Id),
    Silent(Id),
    Heard(Id),
    /// The host: comes back, never does, goes.
    Boots(Id),
    NeverBack(Id),
    Dies(Id),
    /// The kubelet, or the node controller for it.
    Reports(Id),
    /// A person.
    PersonCordons(Id),
    PersonUncordons(Id),
    PersonWithdraws(Id),
    PersonPauses(Id),
    PersonResumes(Id),
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
