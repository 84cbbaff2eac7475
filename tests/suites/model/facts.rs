//! What the small state stands for: names, versions, plans; and the real Node of a small one.

use std::{collections::BTreeMap, time::Duration};

use common::{
    KubernetesVersion,
    annotations::{self, CHANGES_ALLOWED, CORDONED_BY, PAUSED, PERMITTED_PLAN, PLAN_OBSERVED, READY, STATE},
    disruption::Disruption,
    metadata::NodeName,
    plan::Plan,
    software::{SoftwareName, SoftwareVersion},
    state::{self, Phase},
};
use infrop::{
    cluster::{DrainRules, NodeView},
    desired::Amount,
    rollout::{
        assess::MARK,
        policy::{Drain, Limits, Own, Policy},
        saved::{Occasion, SAVED},
    },
};
use jiff::{SignedDuration, Timestamp};

use crate::{
    state::{Cordon, Host, Id, Node, Said, State, Three},
    world::Scenario,
};

const OLD: &str = "1.36.4";
const NEW: &str = "1.37.1";

/// The pool of all workers.
pub(crate) const POOL: &str = "pool";

/// How many workers may be away.
pub(crate) const MOST_AWAY: usize = 1;

/// How long infrop waits for a sign; nothing in a run takes so long.
const PATIENCE: SignedDuration = SignedDuration::from_hours(1);

/// Who is there, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One control plane and two workers get another Kubernetes version.
    Mixed,
    /// Three control planes get another Kubernetes version.
    Planes,
    /// Two workers restart; the control plane is as it should be.
    Restart,
    /// Three control planes restart.
    PlanesRestart,
}

impl Shape {
    pub(crate) fn is_plane(self, id: Id) -> bool {
        matches!(self, Self::Planes | Self::PlanesRestart) || id == Id::A
    }
}

/// A software of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Software {
    pub(crate) name: SoftwareName,
    pub(crate) old: Option<SoftwareVersion>,
    pub(crate) new: SoftwareVersion,
    /// Whether it is there only after a boot.
    pub(crate) boots: bool,
}

/// What never changes.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) shape: Shape,
    /// Nodes whose boots change nothing, by bits.
    pub(crate) stubborn: u8,
    /// Whether pods may stay while something changes.
    pub(crate) gentle: bool,
    pub(crate) names: Three<NodeName>,
    pub(crate) targets: Three<Plan>,
    /// Of each node's plan, in the order of change; the place is the bit.
    pub(crate) software: Three<Vec<Software>>,
    pub(crate) policy: Policy,
    pub(crate) old: KubernetesVersion,
    pub(crate) new: KubernetesVersion,
    pub(crate) now: Timestamp,
}

impl Facts {
    pub(crate) fn new(scenario: &Scenario) -> anyhow::Result<Self> {
        let Scenario { shape, stubborn, gentle, .. } = *scenario;
        let software = |id| software(shape, id);
        let (a, b, c) = (software(Id::A)?, software(Id::B)?, software(Id::C)?);
        let software = Three::from_fn(|id| match id {
            Id::A => a.clone(),
            Id::B => b.clone(),
            Id::C => c.clone(),
        });
        let disruption = Id::ALL.iter().filter(|_| gentle).flat_map(|id| software.at(*id));
        let disruption = disruption.map(|one| (one.name.clone(), Disruption::Restart)).collect();
        let names: [NodeName; 3] = ["a".parse()?, "b".parse()?, "c".parse()?];
        let [first, second, third] = names;
        let limits =
            Limits { max_unavailable: Amount::Nodes(u16::try_from(MOST_AWAY)?), ..Limits::default() };
        Ok(Self {
            shape,
            stubborn,
            gentle,
            names: Three::from_fn(|id| match id {
                Id::A => first.clone(),
                Id::B => second.clone(),
                Id::C => third.clone(),
            }),
            targets: Three::from_fn(|id| {
                let desired = software.at(id).iter().map(|one| (one.name.clone(), one.new.clone()));
                Plan::new(desired.collect())
            }),
            software,
            policy: Policy {
                groups: [(POOL.to_owned(), limits)].into(),
                control_planes: Own::default(),
                zone_label: "zone".to_owned(),
                soak: SignedDuration::ZERO,
                max_failed: 3,
                windows: Vec::new(),
                drain: Drain { rules: DrainRules::default(), limit: Duration::from_mins(10) },
                disruption,
                patience: PATIENCE,
                checks: Vec::new(),
                exclude_from_load_balancers: false,
                prefer_ready: false,
            },
            old: OLD.parse()?,
            new: NEW.parse()?,
            now: "2026-11-16T12:00:00Z".parse()?,
        })
    }

    pub(crate) fn is_plane(&self, id: Id) -> bool {
        self.shape.is_plane(id)
    }

    /// All software of a plan.
    pub(crate) fn whole(&self, id: Id) -> u8 {
        (0..self.software.at(id).len()).map(|place| 1 << place).sum()
    }

    /// The bit of a software in a node's plan; none if it is not part of it.
    pub(crate) fn bit(&self, id: Id, name: &str) -> u8 {
        let place = self.software.at(id).iter().position(|one| one.name.as_str() == name);
        place.map_or(0, |place| 1 << place)
    }

    /// Where it starts: nobody asked for anything, and everyone is well.
    pub(crate) fn start(&self) -> State {
        let done = |id| if self.is_settled(id) { self.whole(id) } else { 0 };
        State {
            nodes: Three::from_fn(|id| Node { ready: true, up: true, current: done(id), ..Node::default() }),
            hosts: Three::from_fn(|id| {
                let mut host = Host { changed: done(id), pods: true, ..Host::default() };
                host.book.ready = true;
                host
            }),
            first: <_>::default(),
            second: <_>::default(),
            lease: <_>::default(),
            left: <_>::default(),
        }
    }

    /// Whether a node has nothing to do from the start.
    fn is_settled(&self, id: Id) -> bool {
        self.shape == Shape::Restart && id == Id::A
    }

    /// The software whose version is the desired one now, as an agent verifies it.
    pub(crate) fn current(&self, id: Id, host: &Host) -> u8 {
        let software = self.software.at(id).iter().enumerate();
        let there = software.filter(|(place, one)| {
            host.changed & (1 << place) != 0
                && (!one.boots || self.has_booted(id, host.boot) || self.is_settled(id))
        });
        there.map(|(place, _)| 1 << place).sum()
    }

    /// Before what etcd's data is saved.
    pub(crate) fn occasion(&self) -> Occasion {
        if self.raises_etcd() { Occasion::Kubernetes(self.new.clone()) } else { Occasion::Change }
    }

    /// Whether Kubernetes, and with it etcd, gets another version.
    pub(crate) fn raises_etcd(&self) -> bool {
        matches!(self.shape, Shape::Mixed | Shape::Planes)
    }

    /// Whether what needs a boot has had one.
    pub(crate) fn has_booted(&self, id: Id, boot: u8) -> bool {
        boot > 0 && self.stubborn & id.bit() == 0
    }

    /// Whether a host is at its plan.
    pub(crate) fn is_reached(&self, id: Id, host: &Host) -> bool {
        self.current(id, host) == self.whole(id)
    }

    /// Whether its kubelet runs the new version.
    pub(crate) fn runs_new_kubelet(&self, id: Id, host: &Host) -> bool {
        host.changed & self.bit(id, "kubelet") != 0 && !self.is_settled(id)
    }

    /// Whether its API server runs the new version.
    pub(crate) fn runs_new_api_server(&self, id: Id, host: &Host) -> bool {
        host.changed & self.bit(id, "kubernetes") != 0
    }

    /// The real Node of a small one.
    pub(crate) fn view(&self, id: Id, node: &Node) -> anyhow::Result<NodeView> {
        let target = self.targets.at(id);
        let mut map = BTreeMap::new();
        let mut set = |key: &str, value: String| drop(map.insert(key.to_owned(), value));
        set(CHANGES_ALLOWED, node.permit.to_string());
        if node.permit {
            set(PERMITTED_PLAN, if node.armed { target.id().to_string() } else { String::new() });
        }
        set(READY, node.ready.to_string());
        if node.observed {
            set(PLAN_OBSERVED, target.id().to_string());
        }
        if matches!(node.cordon, Cordon::Rollout | Cordon::Lifted) {
            set(CORDONED_BY, format!("{MARK}{}", target.id()));
        }
        if node.paused {
            set(PAUSED, "a person".to_owned());
        }
        // What follows a new kubelet would be saved for by itself; of that there is always a copy here.
        let after = node.kubelet && self.raises_etcd();
        if self.is_plane(id) && (after || node.saved) {
            let occasion = if after { Occasion::Change } else { self.occasion() };
            set(SAVED, occasion.mark(self.now));
        }
        let state = state::State {
            phase: match node.said {
                Said::Anything => Phase::Waiting,
                Said::Working => Phase::Changing,
                Said::Quarantined => Phase::Quarantined,
                Said::Refused => Phase::Refused,
            },
            reason: state::Reason::ChangingSoftware,
            message: String::new(),
            since: self.now,
            attempt: 0,
            boot_id: boot(node.agent_boot),
            agent_version: String::new(),
        };
        set(STATE, serde_json::to_string(&state)?);
        for (place, one) in self.software.at(id).iter().enumerate() {
            let there = node.current & (1 << place) != 0;
            if let Some(version) = if there { Some(&one.new) } else { one.old.as_ref() } {
                set(&annotations::current_version(&one.name), version.to_string());
            }
        }
        if node.plan {
            map.extend(annotations::write_plan(target));
        }
        let settled = if self.shape == Shape::Restart { OLD } else { NEW };
        Ok(NodeView {
            name: self.names.at(id).clone(),
            uid: String::new(),
            resource_version: "1".to_owned(),
            ready: if node.up { Ok(()) } else { Err("its kubelet does not report".to_owned()) },
            since: None,
            cordoned: node.cordon.is_on(),
            taints: Vec::new(),
            control_plane: self.is_plane(id),
            kubelet: format!("v{}", if node.kubelet { settled } else { OLD }),
            boot_id: boot(node.kubelet_boot),
            labels: BTreeMap::new(),
            annotations: map,
        })
    }
}

/// A boot's id.
pub(crate) fn boot(number: u8) -> String {
    format!("boot {number}")
}

fn software(shape: Shape, id: Id) -> anyhow::Result<Vec<Software>> {
    let one = |name: &str, old: Option<&str>, new: &str, boots| -> anyhow::Result<Software> {
        let old = old.map(str::parse).transpose()?;
        Ok(Software { name: name.parse()?, old, new: new.parse()?, boots })
    };
    Ok(match (shape, shape.is_plane(id)) {
        (Shape::Restart, true) => vec![one("kubelet", Some(OLD), OLD, false)?],
        (Shape::Restart, false) | (Shape::PlanesRestart, _) => vec![one("reboot", None, "now", true)?],
        // kubeadm's package is left out: its change is a step like the others, and nothing depends on it.
        (_, true) => {
            vec![one("kubernetes", Some(OLD), NEW, false)?, one("kubelet", Some(OLD), NEW, false)?]
        }
        (_, false) => vec![one("kubelet", Some(OLD), NEW, false)?],
    })
}
