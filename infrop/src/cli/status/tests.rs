use std::collections::BTreeMap;

use common::{annotations, metadata::NodeName};

use super::*;
use crate::{
    apply::{
        Action, Cluster, ClusterView, Decision, Group, Host, Snapshot,
        testing::{Fake, lab_context},
    },
    bootstrap::host::{HostReport, KubeadmState},
    cluster::NodeView,
    provider::{Compute, Ownership, Power, Spares},
};

const STATE: &str = r#"{"phase":"Retrying","reason":"PackageNotFound","message":"none has it","since":"2026-01-01T00:00:00Z","attempt":2,"bootId":"b","agentVersion":"0.1.0"}"#;

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn host(text: &str, report: Option<Result<HostReport, String>>) -> Host {
    Host {
        compute: Compute {
            name: name(text),
            pool: "w".parse().unwrap(),
            address: "10.0.0.1".parse().unwrap(),
            ownership: Ownership::Ours,
            power: Power::On,
        },
        group: 0,
        report,
        wanted: None,
    }
}

fn said(kubeadm: KubeadmState) -> HostReport {
    HostReport {
        boot_id: "b".into(),
        owner: None,
        agent_package: None,
        delivered: Some("digest".into()),
        initialized: None,
        agent: None,
        interfaces: BTreeMap::new(),
        joined: kubeadm == KubeadmState::Done,
        kubeadm,
        control_plane: false,
    }
}

fn node(text: &str, ready: Result<(), String>, notes: &[(&str, &str)]) -> NodeView {
    NodeView {
        name: name(text),
        uid: String::new(),
        resource_version: String::new(),
        ready,
        since: Some("2026-02-02T00:00:00Z".parse().unwrap()),
        cordoned: notes.iter().any(|(key, _)| *key == "cordoned"),
        taints: Vec::new(),
        control_plane: false,
        kubelet: "v1.37.1".into(),
        boot_id: "b".into(),
        labels: BTreeMap::new(),
        annotations: notes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    }
}

fn snapshot(hosts: Vec<Host>, cluster: Cluster) -> Snapshot {
    let group = Group {
        provider: "here".parse().unwrap(),
        pool: "w".parse().unwrap(),
        role: apply::Role::Worker,
        count: 1,
        labels: BTreeMap::new(),
        taints: None,
        spares: Spares::Numbered,
        peers: None,
    };
    Snapshot {
        groups: vec![group],
        hosts: hosts.into_iter().map(|host| (host.compute.name.clone(), host)).collect(),
        cluster,
        ..Snapshot::default()
    }
}

fn only_row(host: Host, node: Option<NodeView>, decision: &Decision) -> Row {
    let nodes = node.into_iter().map(|node| (node.name.clone(), node)).collect();
    let snapshot = snapshot(vec![host], Cluster::There(ClusterView { nodes, pending: Vec::new() }));
    report("lab".into(), None, &snapshot, decision, None).nodes.remove(0)
}

#[test]
fn a_host_has_a_phase_and_a_reason_wherever_it_is() {
    let ready = || Some(node("w-1", Ok(()), &[]));
    let noted = |notes: &[(&str, &str)]| Some(node("w-1", Ok(()), notes));
    let done = || Some(Ok(said(KubeadmState::Done)));
    let bare = HostReport { delivered: None, ..said(KubeadmState::None) };
    for (seen, node, phase, reason) in [
        (None, None, "Silent", ""),
        (Some(Err("no route".into())), ready(), "Silent", ""),
        (Some(Ok(bare)), None, "Bare", ""),
        (Some(Ok(said(KubeadmState::None))), None, "Preparing", ""),
        (Some(Ok(said(KubeadmState::Running))), None, "Joining", ""),
        (Some(Ok(said(KubeadmState::Failed("x".into())))), None, "Failed", ""),
        (done(), None, "Joining", ""),
        (done(), ready(), "Ready", ""),
        (done(), Some(super::tests::node("w-1", Err("no network".into()), &[])), "NotReady", "no network"),
        (done(), noted(&[(annotations::STATE, STATE)]), "Retrying", "PackageNotFound: none has it"),
        (done(), noted(&[(annotations::STATE, "{")]), "Ready", ""),
        (done(), noted(&[(annotations::PAUSED, "disk")]), "Ready", "paused: disk"),
        (done(), noted(&[("cordoned", "")]), "Ready", "cordoned by a person"),
        (done(), noted(&[("cordoned", ""), (annotations::CORDONED_BY, "x")]), "Ready", "cordoned by x"),
    ] {
        let row = only_row(host("w-1", seen), node, &Decision::default());
        assert_eq!((row.phase.as_str(), row.reason.as_deref().unwrap_or_default()), (phase, reason));
    }
}

#[test]
fn what_keeps_it_comes_before_what_is_next() {
    let row = |decision: &Decision| only_row(host("w-1", None), None, decision).reason.unwrap();
    let mut decision = Decision { actions: vec![Action::Connect(name("w-1"))], ..Decision::default() };
    assert_eq!(row(&decision), "next for `infrop apply`: wait until w-1 answers");
    decision.waiting.insert(name("w-1"), "it waits".into());
    assert_eq!(row(&decision), "it waits");
    decision.blocked.insert("w-1".into(), "it cannot".into());
    assert_eq!(row(&decision), "it cannot");
}

#[test]
fn since_is_of_the_phase() {
    let row = |notes: &[(&str, &str)], seen| {
        only_row(host("w-1", seen), Some(node("w-1", Ok(()), notes)), &Decision::default())
    };
    let done = || Some(Ok(said(KubeadmState::Done)));
    let since = |row: Row| row.since.map(|since| since.to_string()).unwrap_or_default();
    assert_eq!(since(row(&[], done())), "2026-02-02T00:00:00Z");
    assert_eq!(since(row(&[(annotations::STATE, STATE)], done())), "2026-01-01T00:00:00Z");
    assert_eq!(since(row(&[], None)), "");
}

#[test]
fn what_is_missing_alone_or_of_no_node_is_shown_too() {
    let view = ClusterView { nodes: [(name("x"), node("x", Ok(()), &[]))].into(), pending: Vec::new() };
    let snapshot = snapshot(Vec::new(), Cluster::There(view));
    let decision = Decision {
        actions: vec![Action::Create { group: 0, name: name("w-1") }],
        blocked: [("x".to_owned(), "no compute".to_owned()), ("pool w".to_owned(), "too few".to_owned())]
            .into(),
        ..Decision::default()
    };
    let report = report("lab".into(), Some("10.0.0.1:6443".into()), &snapshot, &decision, None);
    let rows = rows(&report.nodes, "2026-02-02T00:01:00Z".parse().unwrap());
    let lines: Vec<Vec<&str>> = rows.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["w-1", "w", "Missing"]);
    assert_eq!(lines[1], ["x", "Ready", "60s", "v1.37.1", "no", "compute"]);
    assert_eq!(report.problems["pool w"], "too few");
    let now = "2026-02-02T00:01:00Z".parse().unwrap();
    assert_eq!(headline(&report, now), "lab: 10.0.0.1:6443: the API answers; not paused");
}

#[test]
fn the_headline_says_why_there_is_no_answer_and_who_is_at_work() {
    let now = "2026-02-02T00:01:00Z".parse().unwrap();
    let entry = Entry {
        holder: "ci".into(),
        since: "2026-02-01T23:51:00Z".parse().unwrap(),
        renewed: "2026-02-02T00:00:57Z".parse().unwrap(),
    };
    let snapshot = snapshot(Vec::new(), Cluster::Silent("refused".into()));
    let report = report("lab".into(), None, &snapshot, &Decision::default(), Some(entry));
    assert_eq!(
        headline(&report, now),
        "lab: the API does not answer: refused; not paused; ci has been at work for 10m, last heard of 3s ago"
    );
}

#[test]
fn ages_are_in_the_unit_that_says_enough() {
    for (seconds, expected) in
        [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")]
    {
        assert_eq!(age(SignedDuration::from_secs(seconds)), expected);
    }
}

#[tokio::test]
async fn a_host_with_power_that_does_not_answer_shows_the_end_of_its_console() {
    let directory = tempfile::tempdir().unwrap();
    let computes = vec![Fake::compute("control-1", Power::On), Fake::compute("control-2", Power::Off)];
    let context = lab_context(Fake { computes, ..Fake::new(&directory.path().join("writer.json")) });
    let report = look(&context).await.unwrap();
    let rows: Vec<(&str, bool)> = report
        .nodes
        .iter()
        .map(|row| {
            (row.phase.as_str(), row.reason.as_deref().is_some_and(|why| why.contains("ends with: no disk")))
        })
        .collect();
    assert_eq!(rows, [("Silent", true), ("Off", false)]);
}

#[tokio::test]
async fn what_is_not_built_here_is_said_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut context = lab_context(Fake::new(&directory.path().join("writer.json")));
    assert!(look(&context).await.unwrap().problems.is_empty());
    context.unbuilt = vec!["build node-agent".to_owned()];
    let problems = look(&context).await.unwrap().problems;
    let why = &problems["this computer"];
    assert!(problems.len() == 1 && why.ends_with("`infrop apply` would first build node-agent"), "{why}");
}
