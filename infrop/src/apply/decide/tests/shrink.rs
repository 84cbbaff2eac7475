//! Which hosts go, and which do not.

use super::*;

#[test]
fn surplus_hosts_go_those_begun_first_then_those_that_never_joined_then_the_highest_number() {
    let hosts = [("cp-1", At::Joined), ("w-2", At::Joined), ("w-9", At::Joined), ("w-10", At::Joined)];
    let mut snapshot = with_cluster(snapshot(1, 2, &hosts));
    assert_eq!(actions(&snapshot), ["remove w-10"]);
    let annotations = &mut view_of(&mut snapshot).nodes.get_mut(&name("w-2")).unwrap().annotations;
    annotations.insert(REMOVING.to_owned(), "true".to_owned());
    assert_eq!(actions(&snapshot), ["remove w-2"]);
    view_of(&mut snapshot).nodes.get_mut(&name("w-2")).unwrap().annotations.remove(REMOVING);
    snapshot.hosts.insert(name("w-9"), host("w-9", 1, false, At::Initialized));
    view_of(&mut snapshot).nodes.remove(&name("w-9"));
    assert_eq!(actions(&snapshot), ["remove w-9"]);
}

#[test]
fn a_host_whose_removal_was_begun_is_kept_if_it_is_wanted_again_and_has_lost_only_its_pods() {
    let hosts = [("cp-1", At::Joined), ("w-1", At::Joined), ("w-2", At::Joined)];
    let mut marked = with_cluster(snapshot(1, 2, &hosts));
    let mut mark = |value: &str| {
        let node = view_of(&mut marked).nodes.get_mut(&name("w-1")).unwrap();
        node.annotations.insert(REMOVING.to_owned(), value.to_owned());
        node.cordoned = true;
        marked.clone()
    };
    let bound = mark(Removing::ForGood.as_str());
    assert_eq!(actions(&bound), ["remove w-1"]);
    let mut wanted = mark(Removing::Surplus.as_str());
    assert_eq!(actions(&wanted), ["keep w-1"]);
    assert_eq!(foreseen(&wanted), ["keep w-1"]);
    // Also if another goes for good.
    wanted.removals.replace = [name("w-2")].into();
    assert_eq!(actions(&wanted), ["remove w-2", "keep w-1"]);
    // One that goes for good is never kept, also if another goes first.
    let mut bound = mark(Removing::ForGood.as_str());
    bound.removals.replace = [name("w-2")].into();
    assert_eq!(actions(&bound), ["remove w-2"]);
    let mut surplus = mark(Removing::Surplus.as_str());
    surplus.groups[1].count = 1;
    assert_eq!(actions(&surplus), ["remove w-1"]);
}

#[test]
fn no_more_goes_than_allowed_and_then_nothing_does() {
    let hosts = [("cp-1", At::Joined), ("w-1", At::Joined), ("w-2", At::Joined), ("w-3", At::Joined)];
    let mut snapshot = with_cluster(snapshot(1, 1, &hosts));
    let decision = decide(&snapshot);
    assert!(decision.actions.is_empty(), "{decision:?}");
    assert!(decision.blocked["w-3"].contains("--max-delete allows 1"));
    snapshot.removals.limit = 2;
    assert_eq!(actions(&snapshot), ["remove w-3", "remove w-2"]);
    // One is done, one is under way: that is what was allowed.
    snapshot.hosts.remove(&name("w-3"));
    view_of(&mut snapshot).nodes.remove(&name("w-3"));
    snapshot.removals.done = 1;
    snapshot.busy = [name("w-2")].into();
    assert_eq!(decide(&snapshot), Decision::default());
}

#[test]
fn control_planes_go_one_by_one_and_never_below_a_majority() {
    let hosts = [("cp-1", At::Joined), ("cp-2", At::Joined), ("cp-3", At::Joined)];
    let mut snapshot = with_cluster(snapshot(1, 0, &hosts));
    snapshot.removals.limit = 2;
    assert_eq!(actions(&snapshot), ["remove cp-3"]);
    assert!(decide(&snapshot).waiting[&name("cp-2")].contains("one after the other"));
    view_of(&mut snapshot).nodes.get_mut(&name("cp-1")).unwrap().ready = Err("away".into());
    assert!(decide(&snapshot).blocked["cp-3"].contains("etcd needs 2"));
    let mut last = with_cluster(self::snapshot(0, 0, &[("cp-1", At::Joined)]));
    last.removals.limit = 5;
    assert!(decide(&last).blocked["cp-1"].contains("last control plane"));
}

#[test]
fn what_is_left_has_to_be_a_majority_that_is_well() {
    for (others, expected) in [
        (&[][..], Some("it is the last control plane")),
        (&[true], None),
        (&[false], Some("without it 0 of 1 control planes would be well, and etcd needs 1")),
        (&[true, true], None),
        (&[true, false], Some("without it 1 of 2 control planes would be well, and etcd needs 2")),
        (&[true, true, false, true], None),
        (
            &[true, true, false, false],
            Some("without it 2 of 4 control planes would be well, and etcd needs 3"),
        ),
    ] {
        let others =
            others.iter().enumerate().map(|(index, well)| node(&format!("cp-{}", index + 2), true, *well));
        // The one that goes does not count, nor do workers.
        let all = others.chain([node("cp-1", true, true), node("w-1", false, true)]);
        let nodes = all.map(|node| (node.name.clone(), node)).collect();
        let why = too_few_without(&nodes, &name("cp-1"));
        assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
        assert!(why.unwrap_or_default().starts_with(expected.unwrap_or_default()), "{nodes:?}");
    }
}

#[test]
fn a_dead_host_goes_only_if_it_is_given_up() {
    let hosts = [("cp-1", At::Joined), ("w-1", At::Joined), ("w-2", At::Silent)];
    let mut surplus = with_cluster(snapshot(1, 1, &hosts));
    // One that never answered may have joined: the choice falls on the highest number.
    assert!(decide(&surplus).blocked["w-2"].contains("infrop node replace w-2"));
    surplus.removals.replace = [name("w-2")].into();
    assert_eq!(actions(&surplus), ["remove w-2"]);
    let mut replaced = with_cluster(snapshot(1, 2, &hosts));
    replaced.removals.replace = [name("w-2")].into();
    assert_eq!(actions(&replaced), ["remove w-2"]);
}

#[test]
fn a_dead_host_whose_mark_nobody_can_read_goes_if_it_is_given_up_and_its_node_says_it_is_ours() {
    let mut snapshot =
        with_cluster(snapshot(1, 2, &[("cp-1", At::Joined), ("w-1", At::Joined), ("w-2", At::Silent)]));
    snapshot.groups[1].spares = Spares::Listed(vec![name("rack-a")]);
    let dead = &mut snapshot.hosts.get_mut(&name("w-2")).unwrap().compute;
    dead.ownership = Ownership::Unknown("no route".into());
    snapshot.removals.replace = [name("w-2")].into();
    assert_eq!(actions(&snapshot), [""; 0]);
    view_of(&mut snapshot).nodes.insert(name("w-2"), node("w-2", false, false));
    assert_eq!(actions(&snapshot), ["remove w-2"]);
    snapshot.removals.replace.clear();
    assert_eq!(actions(&snapshot), [""; 0]);
}

#[test]
fn while_nobody_can_tell_who_is_at_work_only_what_may_bring_the_api_back_is_done() {
    let hosts = [("cp-1", At::Joined), ("w-1", At::Bare), ("w-2", At::Failed), ("w-3", At::Silent)];
    let mut snapshot = with_cluster(snapshot(1, 4, &hosts));
    let mut off = host("w-3", 1, false, At::Booting);
    off.compute.power = Power::Off;
    snapshot.hosts.insert(name("w-3"), off);
    snapshot.cluster = Cluster::Silent("no route".into());
    let all = ["install node-agent on w-1", "remove what an unfinished kubeadm left on w-2"];
    let harmless = ["wait until the API answers", "switch w-3 on"];
    for unsure in [false, true] {
        snapshot.unsure = unsure;
        let decision = decide(&snapshot);
        let actions = actions(&snapshot);
        assert!(harmless.iter().all(|action| actions.iter().any(|known| known == action)), "{actions:?}");
        assert_eq!(
            all.iter().all(|action| actions.iter().any(|known| known == action)),
            !unsure,
            "{actions:?}"
        );

        let why = decision.waiting.get(&name("w-1")).map(String::as_str).unwrap_or_default();
        assert_eq!(why.contains("there stands who is at work (no route); with --take-over"), unsure, "{why}");
    }
    // A cluster that answers names its writer itself.
    snapshot.cluster = Cluster::There(ClusterView::default());
    assert!(actions(&snapshot).iter().any(|action| action == all[0]));
}

#[test]
fn nothing_goes_that_nobody_agreed_to() {
    let hosts = [("cp-1", At::Joined), ("w-1", At::Joined), ("w-2", At::Joined), ("w-3", At::Joined)];
    let mut snapshot = with_cluster(snapshot(1, 1, &hosts));
    snapshot.removals.limit = 2;
    let both = ["remove w-3", "remove w-2"];
    for (agreed, expected, blocked) in [
        (Agreed::All, &both[..], &[][..]),
        (Agreed::These([name("w-2"), name("w-3")].into()), &both, &[]),
        // What was asked about goes; what came since does not.
        (Agreed::These([name("w-3")].into()), &both[..1], &["w-2"]),
        (Agreed::Nothing, &[], &["w-2", "w-3"]),
    ] {
        snapshot.removals.agreed = agreed.clone();
        assert_eq!(actions(&snapshot), expected, "{agreed:?}");
        let decision = decide(&snapshot);
        assert_eq!(decision.blocked.keys().collect::<Vec<_>>(), blocked, "{agreed:?}");
        assert!(decision.blocked.values().all(|why| why.contains("--yes")), "{decision:?}");
    }
    assert_eq!(leaving(&snapshot), [name("w-3"), name("w-2")]);
}

#[test]
fn what_is_paused_is_neither_removed_nor_changed() {
    let hosts = [("cp-1", At::Joined), ("w-1", At::Joined)];
    let paused = |mut snapshot: Snapshot| {
        let mut node = node("w-1", false, true);
        node.annotations.insert(annotations::PAUSED.to_owned(), "disk\nswap".to_owned());
        view_of(&mut snapshot).nodes.insert(name("w-1"), node);
        snapshot
    };
    // As it should be, it is no matter.
    assert_eq!(decide(&paused(with_cluster(snapshot(1, 1, &hosts)))), Decision::default());
    let surplus = paused(with_cluster(snapshot(1, 0, &hosts)));
    let replaced = {
        let mut snapshot = paused(with_cluster(snapshot(1, 1, &hosts)));
        snapshot.removals.replace = [name("w-1")].into();
        snapshot
    };
    let off = {
        let mut snapshot = paused(with_cluster(snapshot(1, 1, &hosts)));
        snapshot.hosts.get_mut(&name("w-1")).unwrap().compute.power = Power::Off;
        snapshot
    };
    let others = [At::Failed, At::Silent, At::Bare].map(|at| {
        let mut snapshot = paused(with_cluster(snapshot(1, 1, &hosts)));
        snapshot.hosts.insert(name("w-1"), host("w-1", 1, false, at));
        snapshot
    });
    for snapshot in [surplus, replaced, off].into_iter().chain(others) {
        let decision = decide(&snapshot);
        assert!(decision.actions.is_empty(), "{decision:?}");
        assert!(decision.blocked["w-1"].contains("it is paused (disk swap)"), "{decision:?}");
    }
}

#[test]
fn control_planes_that_carry_the_address_know_each_other_before_they_are_given_anything() {
    use At::{Bare, Booting, Initialized, Joined};
    const WAIT: &str = "it waits until all control planes have an address";
    let given = Peers::Given(["10.0.0.1".parse().unwrap()].into());
    for (peers, hosts, busy, expected, waits) in [
        // Two are being made: the third has to wait.
        (Peers::Computes, &[("cp-1", Bare)][..], &["cp-2", "cp-3"][..], &[][..], &["cp-1"][..]),
        // All have an address, though not all answer.
        (
            Peers::Computes,
            &[("cp-1", Bare), ("cp-2", Booting), ("cp-3", Booting)],
            &[],
            &["install node-agent on cp-1", "wait until cp-2 answers", "wait until cp-3 answers"],
            &[],
        ),
        // One that is in the cluster already waits for nobody.
        (
            Peers::Computes,
            &[("cp-1", Joined), ("cp-2", Initialized)],
            &["cp-3"],
            &["wait until cp-1 is Ready"],
            &["cp-2"],
        ),
        // Hosts that are given are known ahead.
        (given, &[("cp-1", Bare)], &["cp-2", "cp-3"], &["install node-agent on cp-1"], &[]),
    ] {
        let mut snapshot = with_cluster(snapshot(3, 0, hosts));
        for (number, host) in snapshot.hosts.values_mut().enumerate() {
            host.compute.address = [10, 0, 0, u8::try_from(number).unwrap()].into();
        }
        view_of(&mut snapshot).nodes.clear();
        snapshot.groups[0].peers = Some(peers);
        snapshot.busy = busy.iter().map(|text| name(text)).collect();
        let decision = decide(&snapshot);
        assert_eq!(actions(&snapshot), expected);
        let waiting = waits.iter().map(|text| (name(text), WAIT.to_owned())).collect();
        assert_eq!(decision.waiting, waiting);
    }
}

#[test]
fn a_host_for_which_nothing_can_be_made_says_why() {
    let mut snapshot = snapshot(1, 0, &[("cp-1", At::Bare)]);
    snapshot.hosts.get_mut(&name("cp-1")).unwrap().wanted = Some(Err("it has no such interface".into()));
    let decision = decide(&snapshot);
    assert!(decision.actions.is_empty());
    assert_eq!(decision.blocked["cp-1"], "it has no such interface");
}
