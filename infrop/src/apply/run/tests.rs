//! What a run learns from actions that failed.

use super::{super::snapshot::Role, *};
use crate::{
    apply::{
        context::tests::{DOCUMENT, context, host},
        testing::Silence,
    },
    cluster::DrainError,
};

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn options() -> Options {
    Options {
        timeout: Duration::from_mins(1),
        parallel: 4,
        removals: Removals::default(),
        take_over: false,
        metrics: None,
    }
}

/// A run that has seen a control plane and a worker.
fn begun<'a>(context: &'a Context, options: &'a Options) -> Run<'a> {
    let hosts = [host("c1", 0, "192.0.2.11", "192.0.2.11"), host("w1", 1, "192.0.2.21", "192.0.2.21")];
    Run {
        context,
        options,
        progress: &Silence,
        snapshot: Snapshot {
            groups: context.groups(&[]),
            hosts: hosts.map(|host| (host.compute.name.clone(), host)).into(),
            ..Snapshot::default()
        },
        access: None,
        attempts: BTreeMap::new(),
        under_way: UnderWay::default(),
        changes: 0,
        done: 0,
        foreseen: 0,
        stop: watch::channel(false).1,
    }
}

#[tokio::test]
async fn what_a_host_said_before_a_kubeadm_that_nobody_saw_end_is_forgotten() {
    let (context, options) = (context(DOCUMENT).await, options());
    let (c1, w1) = (name("c1"), name("w1"));
    for (action, forgets) in [
        (Action::Init(c1.clone()), true),
        (Action::Join(c1.clone(), Role::ControlPlane), true),
        (Action::Join(w1.clone(), Role::Worker), true),
        (Action::AwaitKubeadm(c1.clone()), true),
        (Action::Reset(w1.clone()), true),
        (Action::Deliver(c1.clone()), false),
        (Action::Register(w1), false),
    ] {
        let mut run = begun(&context, &options);
        let host = action.host().unwrap().clone();
        run.fail(&action, &anyhow!("the link broke"));
        assert_eq!(run.snapshot.hosts[&host].report.is_none(), forgets, "{action}");
        assert_eq!(run.snapshot.unclear.contains(&host), forgets, "{action}");
        if forgets {
            // A look ends that.
            take_report(&context, &mut run.snapshot, &host, Err("no route".to_owned()));
            assert!(run.snapshot.unclear.contains(&host), "{action}");
            take_report(&context, &mut run.snapshot, &host, Ok(HostReport::default()));
            assert!(run.snapshot.unclear.is_empty(), "{action}");
        }
    }
}

#[tokio::test]
async fn a_held_drain_ends_a_removal_for_this_run_and_other_trouble_does_not() {
    let (context, options) = (context(DOCUMENT).await, options());
    let held = DrainError::Blocked { node: name("w1"), after: Duration::from_mins(10), blockers: Vec::new() };
    let remove = Action::Remove(name("w1"));
    let mut run = begun(&context, &options);
    run.fail(&remove, &held.into());
    assert!(run.snapshot.failed[&name("w1")].starts_with("cannot remove w1: w1 is not empty after 600 s"));
    let mut run = begun(&context, &options);
    for attempt in 1..=ATTEMPTS {
        run.fail(&remove, &anyhow!("the API does not answer"));
        assert_eq!(run.snapshot.failed.contains_key(&name("w1")), attempt == ATTEMPTS, "{attempt}");
    }
}

#[tokio::test]
async fn control_planes_wait_until_the_last_of_those_under_way_has_ended() {
    let (context, options) = (context(DOCUMENT).await, options());
    let mut run = begun(&context, &options);
    let second = host("c2", 0, "192.0.2.12", "192.0.2.12");
    run.snapshot.hosts.insert(name("c2"), second);
    let actions = ["c1", "c2"].map(|host| Action::AwaitKubeadm(name(host)));
    let started: Vec<_> = actions.iter().map(|action| run.start(action.clone())).collect();
    drop(started);
    assert_eq!(run.snapshot.busy_control_planes, [name("c1"), name("c2")].into());
    let [first, _] = actions;
    let result = Err(anyhow!("the link broke"));
    run.take_in(Ended { action: first, started: Instant::now(), result }).await.unwrap();
    assert_eq!(run.snapshot.busy_control_planes, [name("c2")].into());
}

#[tokio::test]
async fn when_time_is_up_all_that_is_under_way_is_named_with_its_last_word() {
    let (context, options) = (context(DOCUMENT).await, Options { parallel: 2, ..options() });
    let mut run = begun(&context, &options);
    let [first, second] = ["c1", "c2"].map(|host| Action::AwaitKubeadm(name(host)));
    run.under_way.say(&first, String::new());
    run.under_way.say(&second, "it has not begun".to_owned());
    let mut running = Running::new();
    running.push(Box::pin(std::future::pending()));
    running.push(Box::pin(std::future::pending()));
    let ended = run.turn(&mut running, tokio::time::Instant::now()).await.unwrap();
    let Some(Outcome::TimedOut { unfinished }) = ended else { panic!("{ended:?}") };
    assert_eq!(unfinished, ["wait for kubeadm on c1", "wait for kubeadm on c2 (it has not begun)"]);
    // What has ended is not.
    let result = Err(anyhow!("the link broke"));
    run.take_in(Ended { action: first, started: Instant::now(), result }).await.unwrap();
    assert_eq!(run.under_way.list().into_keys().collect::<Vec<_>>(), [second]);
}
