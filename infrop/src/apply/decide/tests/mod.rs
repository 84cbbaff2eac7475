//! Tables of what is decided.

mod shrink;
mod turns;

use std::collections::BTreeMap;

use common::{annotations, metadata::InitializedMark, plan::Plan};

use super::*;
use crate::{
    apply::{
        foresee::foresee,
        snapshot::{Agreed, Peers, Removals},
    },
    cluster::{NodeView, REMOVING},
    provider::{Compute, Power},
};

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn plan() -> Plan {
    Plan::new([("kubelet".parse().unwrap(), "1.37.1".parse().unwrap())].into())
}

fn group(pool: &str, role: Role, count: usize) -> Group {
    Group {
        provider: "here".parse().unwrap(),
        pool: pool.parse().unwrap(),
        role,
        count,
        labels: BTreeMap::new(),
        taints: None,
        spares: Spares::Numbered,
        peers: None,
    }
}

/// How far a host is.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Booting,
    Silent,
    Bare,
    Delivered,
    Initialized,
    Running,
    Failed,
    Joined,
}

fn host(name_text: &str, group: usize, control_plane: bool, at: At) -> Host {
    let order = |step: At| at as u8 >= step as u8;
    let report = HostReport {
        boot_id: "b".into(),
        owner: None,
        agent_package: None,
        delivered: order(At::Delivered).then(|| "digest".to_owned()),
        initialized: order(At::Initialized).then(|| InitializedMark {
            node: name(name_text),
            plan: plan().id(),
            at: "2026-01-01T00:00:00Z".parse().unwrap(),
            boot_id: "b".into(),
            agent_version: "0.1.0".into(),
        }),
        agent: None,
        kubeadm: match at {
            At::Running => KubeadmState::Running,
            At::Failed => KubeadmState::Failed("error: no\n".into()),
            At::Joined => KubeadmState::Done,
            _ => KubeadmState::None,
        },
        joined: at == At::Joined,
        control_plane: at == At::Joined && control_plane,
        interfaces: BTreeMap::new(),
    };
    let pool = if control_plane { "cp" } else { "w" };
    Host {
        compute: Compute {
            name: name(name_text),
            pool: pool.parse().unwrap(),
            address: "10.0.0.1".parse().unwrap(),
            ownership: Ownership::Ours,
            power: Power::On,
        },
        group,
        report: match at {
            At::Booting => None,
            At::Silent => Some(Err("no route".into())),
            _ => Some(Ok(report)),
        },
        wanted: Some(Ok(("digest".into(), plan()))),
    }
}

fn node(text: &str, control_plane: bool, ready: bool) -> NodeView {
    NodeView {
        name: name(text),
        uid: String::new(),
        resource_version: String::new(),
        ready: if ready { Ok(()) } else { Err("no network".into()) },
        cordoned: false,
        taints: Vec::new(),
        control_plane,
        kubelet: "v1.37.1".into(),
        boot_id: "b".into(),
        since: None,
        labels: BTreeMap::new(),
        annotations: annotations::write_plan(&plan()),
    }
}

/// Control planes and workers as wanted, with hosts `cp-…` and `w-…`.
fn snapshot(planes: usize, workers: usize, hosts: &[(&str, At)]) -> Snapshot {
    let hosts = hosts.iter().map(|(text, at)| {
        let control_plane = text.starts_with("cp-");
        (name(text), host(text, usize::from(!control_plane), control_plane, *at))
    });
    Snapshot {
        groups: vec![group("cp", Role::ControlPlane, planes), group("w", Role::Worker, workers)],
        hosts: hosts.collect(),
        removals: Removals { limit: 1, agreed: Agreed::All, ..Removals::default() },
        ..Snapshot::default()
    }
}

/// The same with a cluster in which every joined host is a Ready Node.
fn with_cluster(mut snapshot: Snapshot) -> Snapshot {
    let joined = snapshot.hosts.iter().filter(|(_, host)| host.seen().is_some_and(|report| report.joined));
    let nodes = joined.map(|(name, host)| (name.clone(), node(name.as_str(), host.group == 0, true)));
    snapshot.cluster = Cluster::There(ClusterView { nodes: nodes.collect(), pending: Vec::new() });
    snapshot
}

fn actions(snapshot: &Snapshot) -> Vec<String> {
    decide(snapshot).actions.iter().map(ToString::to_string).collect()
}

fn view_of(snapshot: &mut Snapshot) -> &mut ClusterView {
    match &mut snapshot.cluster {
        Cluster::There(view) => view,
        _ => panic!("no cluster"),
    }
}

#[test]
fn from_nothing_all_computes_are_made_at_once() {
    assert_eq!(actions(&snapshot(1, 2, &[])), ["create cp-1", "create w-1", "create w-2"]);
}

#[test]
fn those_under_way_are_not_made_twice() {
    let mut snapshot = snapshot(1, 2, &[]);
    snapshot.busy = [name("cp-1"), name("w-2")].into();
    assert_eq!(actions(&snapshot), ["create w-1"]);
}

#[test]
fn every_host_goes_its_way_without_waiting_for_others() {
    let snapshot = snapshot(
        1,
        3,
        &[("cp-1", At::Initialized), ("w-1", At::Booting), ("w-2", At::Bare), ("w-3", At::Delivered)],
    );
    assert_eq!(
        actions(&snapshot),
        [
            "make the cluster on cp-1",
            "wait until w-1 answers",
            "install node-agent on w-2",
            "wait until w-3 has its software",
        ]
    );
}

#[test]
fn one_control_plane_makes_the_cluster_and_only_if_no_other_can_have_made_one() {
    use At::{Bare, Booting, Failed, Initialized, Joined, Running, Silent};
    for (hosts, expected) in [
        (
            &[("cp-1", Initialized), ("cp-2", Initialized), ("cp-3", Initialized)][..],
            Some("make the cluster on cp-1"),
        ),
        (&[("cp-2", Initialized), ("cp-10", Initialized), ("cp-3", Bare)], Some("make the cluster on cp-2")),
        (&[("cp-1", Initialized), ("cp-2", Silent), ("cp-3", Initialized)], None),
        (&[("cp-1", Initialized), ("cp-2", Booting), ("cp-3", Initialized)], None),
        (&[("cp-1", Initialized), ("cp-2", Running), ("cp-3", Initialized)], None),
        (&[("cp-1", Initialized), ("cp-2", Failed), ("cp-3", Initialized)], None),
        (&[("cp-1", Initialized), ("cp-2", Joined), ("cp-3", Initialized)], None),
        (&[("cp-1", Bare), ("cp-2", Initialized), ("cp-3", Initialized)], None),
    ] {
        let all = actions(&snapshot(3, 0, hosts));
        let init = all.iter().find(|action| action.starts_with("make the cluster"));
        assert_eq!(init.map(String::as_str), expected, "{all:?}");
    }
}

#[test]
fn no_second_cluster_is_made_beside_one_that_any_host_is_part_of() {
    use At::{Bare, Booting, Delivered, Failed, Initialized, Joined, Running, Silent};
    let belongs = "if it is no more, `infrop node replace w-1` takes w-1 out of it";
    // The worker, whether the decision is to wait, and why there is none.
    for (worker, waits, why) in [
        (Booting, false, ""),
        (Silent, false, ""),
        (Bare, false, ""),
        (Delivered, false, ""),
        (Initialized, false, ""),
        // A worker can only begin with a cluster that is there.
        (Running, true, "kubeadm was begun on w-1"),
        (Failed, true, "kubeadm was begun on w-1"),
        (Joined, false, belongs),
    ] {
        let snapshot = snapshot(1, 1, &[("cp-1", Initialized), ("w-1", worker)]);
        let decision = decide(&snapshot);
        let init = decision.actions.contains(&Action::Init(name("cp-1")));
        assert_eq!(init, why.is_empty(), "{decision:?}");
        let (waiting, blocked) = (decision.waiting.get(&name("cp-1")), decision.blocked.get("cp-1"));
        let said = if waits { waiting } else { blocked };
        assert!(said.cloned().unwrap_or_default().ends_with(why), "{decision:?}");
    }
    let mut foreign = snapshot(1, 1, &[("cp-1", Initialized), ("w-1", Bare)]);
    foreign.hosts.get_mut(&name("w-1")).unwrap().report.as_mut().unwrap().as_mut().unwrap().joined = true;
    assert!(
        decide(&foreign).blocked["cp-1"].starts_with("w-1 is part of a cluster that infrop did not make")
    );
}

#[test]
fn a_host_of_someone_else_among_the_control_planes_is_named_as_such() {
    let mut snapshot =
        snapshot(1, 1, &[("cp-1", At::Initialized), ("cp-2", At::Booting), ("w-1", At::Booting)]);
    let ownership = |snapshot: &mut Snapshot, text: &str, ownership| {
        snapshot.hosts.get_mut(&name(text)).unwrap().compute.ownership = ownership;
    };
    ownership(&mut snapshot, "cp-2", Ownership::Foreign("someone".into()));
    assert_eq!(
        decide(&snapshot).blocked["cp-1"],
        "cp-2 is in the pool of the control planes, belongs to someone and may have a cluster: take it out of the \
         document, or release it there"
    );
    ownership(&mut snapshot, "cp-2", Ownership::Unknown("no route".into()));
    assert_eq!(
        decide(&snapshot).waiting[&name("cp-1")],
        "nobody knows what is on cp-2, and it may have a cluster: no route"
    );
    snapshot.hosts.remove(&name("cp-2"));
    ownership(&mut snapshot, "w-1", Ownership::Foreign("someone".into()));
    assert!(actions(&snapshot).contains(&"make the cluster on cp-1".to_owned()));
}

#[test]
fn after_a_kubeadm_whose_end_nobody_saw_the_host_is_looked_at_first() {
    let mut init =
        snapshot(3, 0, &[("cp-1", At::Initialized), ("cp-2", At::Initialized), ("cp-3", At::Bare)]);
    assert_eq!(actions(&init), ["make the cluster on cp-1", "install node-agent on cp-3"]);
    init.doubt(&name("cp-1"));
    assert_eq!(actions(&init), ["wait until cp-1 answers", "install node-agent on cp-3"]);
    assert!(init.unclear.contains(&name("cp-1")));
    // It never answered again: no other one makes a cluster.
    init.failed.insert(name("cp-1"), "no route".into());
    assert_eq!(actions(&init), ["install node-agent on cp-3"]);
    let hosts = [("cp-1", At::Joined), ("w-1", At::Initialized)];
    let mut join = with_cluster(snapshot(1, 1, &hosts));
    assert_eq!(actions(&join), ["join w-1 as a worker"]);
    join.doubt(&name("w-1"));
    assert_eq!(actions(&join), ["wait until w-1 answers"]);
}

#[test]
fn a_silent_cluster_is_waited_for_and_never_made_anew() {
    let mut snapshot =
        snapshot(3, 1, &[("cp-1", At::Silent), ("cp-2", At::Initialized), ("cp-3", At::Initialized)]);
    snapshot.cluster = Cluster::Silent("refused".into());
    let decision = decide(&snapshot);
    assert!(decision.actions.contains(&Action::AwaitApi));
    assert!(!decision.actions.iter().any(|action| matches!(action, Action::Init(_) | Action::Join(..))));
    snapshot.cluster_failed = Some("it never answered".into());
    let decision = decide(&snapshot);
    assert!(!decision.actions.contains(&Action::AwaitApi));
    assert_eq!(decision.blocked["cluster"], "it never answered");
}

#[test]
fn workers_join_together_and_control_planes_one_by_one() {
    let hosts = [
        ("cp-1", At::Joined),
        ("cp-2", At::Initialized),
        ("cp-3", At::Initialized),
        ("w-1", At::Initialized),
        ("w-2", At::Initialized),
    ];
    let mut snapshot = with_cluster(snapshot(3, 2, &hosts));
    assert_eq!(
        actions(&snapshot),
        ["join cp-2 as a control plane", "join w-1 as a worker", "join w-2 as a worker",]
    );
    snapshot.busy = [name("cp-2")].into();
    snapshot.busy_control_planes = [name("cp-2")].into();
    assert_eq!(actions(&snapshot), ["join w-1 as a worker", "join w-2 as a worker"]);
    assert_eq!(
        decide(&snapshot).waiting[&name("cp-3")],
        "control planes come and go one after the other, and it is cp-2's turn"
    );
}

#[test]
fn hosts_that_were_begun_come_first_and_workers_that_could_join_last() {
    let hosts =
        [("cp-1", At::Joined), ("cp-2", At::Initialized), ("w-1", At::Initialized), ("w-2", At::Delivered)];
    assert_eq!(
        actions(&with_cluster(snapshot(3, 3, &hosts))),
        [
            "join cp-2 as a control plane",
            "wait until w-2 has its software",
            "create cp-3",
            "create w-3",
            "join w-1 as a worker",
        ]
    );
}

#[test]
fn kubeadm_is_tried_three_times() {
    let mut snapshot = with_cluster(snapshot(1, 1, &[("cp-1", At::Joined), ("w-1", At::Failed)]));
    for failures in 0..3 {
        snapshot.kubeadm_failures.insert(name("w-1"), failures);
        assert_eq!(actions(&snapshot), ["remove what an unfinished kubeadm left on w-1"]);
    }
    snapshot.kubeadm_failures.insert(name("w-1"), 3);
    let decision = decide(&snapshot);
    assert!(decision.actions.is_empty());
    assert_eq!(decision.blocked["w-1"], "kubeadm failed 3 times: error: no");
}

#[test]
fn an_agent_newer_than_ours_is_not_replaced() {
    // What we bring, what is there, whether infrop brought it and what is there is what we would deliver.
    for (ours, theirs, at, same, expected) in [
        (Some("0.1.0"), Some("0.2.0"), At::Joined, false, false),
        (Some("0.9.0"), Some("0.10.0"), At::Delivered, false, false),
        (Some("0.2.0-rc.1"), Some("0.2.0"), At::Joined, false, false),
        (Some("0.2.0"), Some("0.1.0"), At::Joined, false, true),
        // Another build of the same version.
        (Some("0.1.0"), Some("0.1.0"), At::Joined, false, true),
        (Some("0.1.0+a"), Some("0.1.0+b"), At::Joined, false, true),
        // Nobody can tell.
        (Some("0.1.0"), Some("1:0.2.0~x"), At::Joined, false, true),
        (None, Some("0.2.0"), At::Joined, false, true),
        (Some("0.1.0"), None, At::Joined, false, true),
        // Infrop never delivered to it: a package that came with the host's image.
        (Some("0.1.0"), Some("0.2.0"), At::Bare, false, true),
        // Nothing is to be delivered.
        (Some("0.1.0"), Some("0.2.0"), At::Joined, true, false),
    ] {
        let mut snapshot = with_cluster(snapshot(1, 1, &[("cp-1", At::Joined), ("w-1", at)]));
        snapshot.agent_version = ours.map(|version| version.parse().unwrap());
        let host = snapshot.hosts.get_mut(&name("w-1")).unwrap();
        host.report.as_mut().unwrap().as_mut().unwrap().agent_package = theirs.map(str::to_owned);
        if !same {
            host.wanted = Some(Ok(("another".into(), plan())));
        }
        let decision = decide(&snapshot);
        let case = format!("{ours:?} {theirs:?}: {decision:?}");
        assert_eq!(decision.actions.contains(&Action::Deliver(name("w-1"))), expected, "{case}");
        assert_eq!(decision.blocked.contains_key("w-1"), !expected && !same, "{case}");
    }
}

#[test]
fn a_newer_agent_is_named_with_what_to_do() {
    let mut snapshot = with_cluster(snapshot(1, 0, &[("cp-1", At::Joined)]));
    snapshot.agent_version = Some("0.1.0".parse().unwrap());
    let host = snapshot.hosts.get_mut(&name("cp-1")).unwrap();
    host.report.as_mut().unwrap().as_mut().unwrap().agent_package = Some("0.2.0".into());
    host.wanted = Some(Ok(("another".into(), plan())));
    assert_eq!(
        decide(&snapshot).blocked["cp-1"],
        "it has node-agent 0.2.0, and this infrop brings 0.1.0: use an infrop as new as that"
    );
}

#[test]
fn a_kubeadm_that_runs_is_waited_for() {
    let snapshot = with_cluster(snapshot(1, 1, &[("cp-1", At::Joined), ("w-1", At::Running)]));
    assert_eq!(actions(&snapshot), ["wait for kubeadm on w-1"]);
}

#[test]
fn a_node_that_speaks_of_the_boot_before_is_waited_for() {
    let mut snapshot = with_cluster(snapshot(1, 0, &[("cp-1", At::Joined)]));
    view_of(&mut snapshot).nodes.get_mut(&name("cp-1")).unwrap().boot_id = "before".into();
    assert_eq!(actions(&snapshot), ["wait until cp-1 is Ready"]);
}

#[test]
fn what_is_as_wanted_is_left_alone() {
    let snapshot = with_cluster(snapshot(1, 1, &[("cp-1", At::Joined), ("w-1", At::Joined)]));
    assert_eq!(decide(&snapshot), Decision::default());
}

#[test]
fn nodes_get_labels_and_are_waited_for_and_objects_are_applied() {
    let mut snapshot =
        with_cluster(snapshot(1, 2, &[("cp-1", At::Joined), ("w-1", At::Joined), ("w-2", At::Joined)]));
    let view = view_of(&mut snapshot);
    view.nodes.remove(&name("w-2"));
    view.nodes.get_mut(&name("cp-1")).unwrap().ready = Err("no network".into());
    view.pending = vec!["DaemonSet x".into()];
    snapshot.groups[1].labels = [("a".to_owned(), "b".to_owned())].into();
    assert_eq!(
        actions(&snapshot),
        ["apply objects", "wait until cp-1 is Ready", "register w-1", "wait until w-2 is Ready",]
    );
}

#[test]
fn a_new_node_gets_the_plan_it_came_with() {
    let mut snapshot = with_cluster(snapshot(1, 1, &[("cp-1", At::Joined), ("w-1", At::Joined)]));
    view_of(&mut snapshot).nodes.get_mut(&name("w-1")).unwrap().annotations.clear();
    assert_eq!(actions(&snapshot), ["register w-1"]);
    // Its host came with another one, which a rollout changes.
    let host = snapshot.hosts.get_mut(&name("w-1")).unwrap();
    host.report.as_mut().unwrap().as_mut().unwrap().initialized.as_mut().unwrap().plan =
        "000000000000".parse().unwrap();
    assert_eq!(actions(&snapshot), [""; 0]);
}

#[test]
fn a_host_joins_with_a_version_that_all_control_planes_have() {
    let mut snapshot =
        with_cluster(snapshot(1, 2, &[("cp-1", At::Joined), ("w-1", At::Joined), ("w-2", At::Initialized)]));
    for (version, expected) in [("1.37.1", &["join w-2 as a worker"][..]), ("1.37.2", &[]), ("1.38.0", &[])] {
        snapshot.kubernetes = Some(version.parse().unwrap());
        assert_eq!(actions(&snapshot), expected, "{version}");
    }
    let why = &decide(&snapshot).waiting[&name("w-2")];
    assert_eq!(why, "it comes with Kubernetes 1.38.0, and cp-1 has v1.37.1: it joins after the rollout");
}

#[test]
fn what_is_not_ours_is_not_touched() {
    let mut snapshot =
        snapshot(1, 3, &[("cp-1", At::Bare), ("w-1", At::Bare), ("w-2", At::Bare), ("w-3", At::Bare)]);
    let ownership = |snapshot: &mut Snapshot, text: &str, ownership| {
        snapshot.hosts.get_mut(&name(text)).unwrap().compute.ownership = ownership;
    };
    ownership(&mut snapshot, "w-1", Ownership::Foreign("someone".into()));
    ownership(&mut snapshot, "w-2", Ownership::Unknown("no route".into()));
    let report = snapshot.hosts.get_mut(&name("w-3")).unwrap().report.as_mut().unwrap().as_mut().unwrap();
    report.joined = true;
    let decision = decide(&snapshot);
    // One that nobody knows about may be ours, so only the foreign one is replaced.
    assert_eq!(actions(&snapshot), ["install node-agent on cp-1", "create w-4"]);
    assert!(decision.blocked["w-1"].contains("belongs to someone"));
    assert!(decision.blocked["w-2"].contains("nobody knows"));
    assert!(decision.blocked["w-3"].contains("a cluster that infrop did not make"));
}

#[test]
fn a_node_without_a_compute_is_an_error_and_stays() {
    let mut snapshot = with_cluster(snapshot(1, 0, &[("cp-1", At::Joined)]));
    for ready in [true, false] {
        view_of(&mut snapshot).nodes.insert(name("x"), node("x", false, ready));
        let decision = decide(&snapshot);
        assert!(
            decision.actions.is_empty()
                && decision.blocked["x"].contains("no pool of the document has a compute")
        );
    }
}

#[test]
fn listed_hosts_are_taken_in_order_and_a_lack_is_said() {
    let mut snapshot = snapshot(1, 3, &[("cp-1", At::Bare)]);
    snapshot.groups[1].spares = Spares::Listed(vec![name("rack-b"), name("rack-a")]);
    let decision = decide(&snapshot);
    assert_eq!(actions(&snapshot), ["install node-agent on cp-1", "create rack-b", "create rack-a"]);
    // One that was taken in this run is no spare any more, although the provider was not asked again.
    let mut taken = snapshot.clone();
    taken.hosts.insert(name("rack-b"), host("rack-b", 1, false, At::Bare));
    taken.failed.insert(name("rack-a"), "no".into());
    assert_eq!(actions(&taken), ["install node-agent on cp-1", "install node-agent on rack-b"]);
    assert!(decision.blocked["pool w"].starts_with("1 more hosts are wanted"));
}

#[test]
fn hosts_that_are_switched_off_are_switched_on() {
    let mut snapshot = with_cluster(snapshot(1, 0, &[("cp-1", At::Joined)]));
    snapshot.hosts.get_mut(&name("cp-1")).unwrap().compute.power = Power::Off;
    assert_eq!(actions(&snapshot), ["switch cp-1 on"]);
}

fn foreseen(snapshot: &Snapshot) -> Vec<String> {
    let (steps, end, _) = foresee(snapshot);
    assert!(end.actions.is_empty() && end.waiting.is_empty() && end.blocked.is_empty(), "{end:?}");
    steps.iter().filter(|action| !action.is_wait()).map(ToString::to_string).collect()
}

#[test]
fn all_steps_are_foreseen() {
    assert_eq!(
        foreseen(&snapshot(1, 1, &[])),
        [
            "create cp-1",
            "create w-1",
            "install node-agent on cp-1",
            "install node-agent on w-1",
            "make the cluster on cp-1",
            "apply objects",
            "join w-1 as a worker",
        ]
    );
    let mut many = snapshot(3, 0, &[("cp-1", At::Failed)]);
    many.groups[0].peers = Some(Peers::Computes);
    assert_eq!(
        foreseen(&many),
        [
            "remove what an unfinished kubeadm left on cp-1",
            "create cp-2",
            "create cp-3",
            "make the cluster on cp-1",
            "install node-agent on cp-2",
            "install node-agent on cp-3",
            "apply objects",
            "join cp-2 as a control plane",
            "join cp-3 as a control plane",
        ]
    );
    let hosts = [("cp-1", At::Joined), ("w-1", At::Joined), ("w-2", At::Joined)];
    assert_eq!(foreseen(&with_cluster(snapshot(1, 1, &hosts))), ["remove w-2"]);
    let mut silent = snapshot(1, 1, &[("cp-1", At::Joined), ("w-1", At::Silent)]);
    silent.cluster = Cluster::Silent("refused".into());
    assert_eq!(foreseen(&silent), ["install node-agent on w-1", "join w-1 as a worker"]);
}

#[test]
fn what_stays_blocked_is_foreseen_too() {
    let mut lacking = snapshot(1, 2, &[]);
    lacking.groups[1].spares = Spares::Listed(vec![name("rack-a")]);
    let (steps, end, _) = foresee(&lacking);
    assert!(steps.contains(&Action::Join(name("rack-a"), Role::Worker)));
    assert!(end.blocked.contains_key("pool w"), "{end:?}");
}
