//! The loop: Nodes are watched, whatever can be done is done at once, and each end is a reason to decide anew.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use common::{metadata::NodeName, plan::Plan};
use futures::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    runtime::{WatchStreamExt as _, events::Reporter, watcher},
};

use super::{
    act::{Found, Means},
    assess::{Assessment, Stage, Verb},
    claims::Claims,
    decide::{Action, Decision, decide, go_on},
    error::Error,
    metrics::MetricsFile,
    policy::Policy,
    report::Report,
    sight::{News, Sight, take_answer},
    snapshot::{EtcdSeen, Failing, Member, Snapshot},
    tell::{Failures, tale},
};
use crate::{
    apply::{Event, Of, Progress, Stage as EventStage, Stop, UnderWay},
    cluster::{Clients, NodeView, WATCH_SECONDS},
    random, retry,
};

/// How often something that fails is tried.
const ATTEMPTS: u32 = 5;

/// The wait before the second attempt.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// While the API does not answer.
const SILENCE_DELAY: Duration = Duration::from_secs(1);

/// Between looks at pods that are not Ready.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(3);

/// The wait before what a site checks is run again.
const TEST_AGAIN: Duration = Duration::from_secs(5);

/// After a decision there is none for so many times as long as it took. Each looks at all nodes, and in a large cluster
/// something happens all the time: what comes meanwhile is decided together. Nodes that were begun do not wait for that.
const PAUSES: u32 = 40;

/// No pause is longer, also where a decision took long because the computer is busy: the next nodes wait for it.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);

/// Of a write that found a Node otherwise than its decision did.
const OVERTAKEN: &str = "someone else wrote the Node meanwhile, and nothing was written";

/// What a node is to become, and which group it is of.
pub type Targets<'a> = dyn Fn(&NodeView) -> (String, Result<Plan, String>) + 'a;

/// What a rollout works with.
pub struct Rollout<'a> {
    /// The cluster.
    pub clients: &'a Clients,
    /// Who we are, as in the writer's Lease.
    pub identity: &'a str,
    /// What it may do.
    pub policy: Policy,
    /// What each node is to become.
    pub targets: &'a Targets<'a>,
    /// Who shows it.
    pub progress: &'a dyn Progress,
    /// Whether someone asked it to stop.
    pub stop: Stop,
    /// When it has to end.
    pub deadline: tokio::time::Instant,
    /// Where its figures are written, if anywhere.
    pub metrics: Option<&'a MetricsFile>,
}

impl std::fmt::Debug for Rollout<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rollout").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// How a rollout ended.
#[derive(Debug)]
pub enum Outcome {
    /// It came to its end; where every node is.
    Ended(Decision),
    /// Time is up.
    TimedOut(Decision),
    /// Someone asked it to stop.
    Stopped,
}

struct Ended {
    action: Action,
    /// Tells its node from another of the same name.
    uid: Option<String>,
    started: Instant,
    result: Result<Found, Error>,
}

type Running<'a> = FuturesUnordered<LocalBoxFuture<'a, Ended>>;

/// The state of a rollout.
struct Run<'a> {
    rollout: &'a Rollout<'a>,
    means: &'a Means<'a>,
    snapshot: Snapshot,
    sight: Sight,
    attempts: BTreeMap<Action, u32>,
    under_way: UnderWay<Action>,
    /// Nodes of which something was heard since they were looked at.
    heard: BTreeSet<NodeName>,
    /// What was decided last, as far as it was told.
    decision: Decision,
    /// Nodes that have failed, as far as it was told.
    failures: Failures,
    report: Report,
}

impl Rollout<'_> {
    /// Takes every node as far as it can go.
    pub async fn run(&self) -> Result<(Outcome, Report), Error> {
        let client = &self.clients.client;
        let (claims, stale) = Claims::take_over(client.clone(), self.identity).await?;
        let means = Means {
            client,
            direct: &self.clients.direct,
            claims: &claims,
            policy: &self.policy,
            reporter: Reporter::from("infrop"),
            metrics: self.metrics,
            told: RefCell::default(),
        };
        let snapshot = Snapshot {
            claims: stale,
            ..Snapshot::new(self.policy.clone(), BTreeMap::new(), Timestamp::now())
        };
        let mut run = Run {
            rollout: self,
            means: &means,
            snapshot,
            sight: Sight::default(),
            attempts: BTreeMap::new(),
            under_way: UnderWay::default(),
            heard: BTreeSet::new(),
            decision: Decision::default(),
            failures: Failures::default(),
            report: Report::default(),
        };
        let outcome = run.until_the_end().await;
        means.tell_all().await;
        if let Some(metrics) = self.metrics {
            metrics.end_rollout();
        }
        let outcome = outcome?;
        // Nobody has to fence what is done.
        claims.end().await?;
        Ok((outcome, run.report))
    }
}

impl<'a> Run<'a> {
    async fn until_the_end(&mut self) -> Result<Outcome, Error> {
        let api = Api::<Node>::all(self.rollout.clients.client.clone());
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let mut nodes = watcher(api, config).backoff(retry::Watching::default()).boxed_local();
        let mut running = Running::new();
        let mut stop = self.rollout.stop.clone();
        let mut listed = false;
        loop {
            let stopped = *stop.borrow();
            let started = Instant::now();
            self.snapshot.now = Timestamp::now();
            let decision = decide(&self.snapshot);
            self.heard.clear();
            if listed {
                self.report.take(&decision, &self.decision, self.snapshot.now);
                if let Some(metrics) = self.rollout.metrics {
                    metrics.take(&decision, &self.report, self.snapshot.now);
                    metrics.write_if_due();
                }
                self.show(&decision);
                self.warn(&decision);
                for action in decision.actions.iter().filter(|_| !stopped) {
                    running.push(self.start(action.clone()));
                }
                self.decision = decision;
                if stopped && self.snapshot.busy.iter().all(only_waits) {
                    self.end();
                    return Ok(Outcome::Stopped);
                }
                if running.is_empty() && !self.decision.is_moving() {
                    return Ok(Outcome::Ended(self.end()));
                }
            }
            let pause_ends = tokio::time::Instant::now() + (started.elapsed() * PAUSES).min(LONGEST_PAUSE);
            let asked = async {
                // Without anyone who could ask, nobody does; and once is enough.
                if stopped || stop.wait_for(|stop| *stop).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                Some(event) = nodes.next() => listed |= self.take(event),
                Some(ended) = running.next() => self.take_in(ended)?,
                () = sleep_until(self.decision.until) => {}
                () = asked => {}
                () = due(self.rollout.metrics) => {}
                () = tokio::time::sleep_until(self.rollout.deadline) => return Ok(Outcome::TimedOut(self.end())),
            }
            // A decision for all that came together.
            loop {
                while let Some(Some(event)) = nodes.next().now_or_never() {
                    listed |= self.take(event);
                }
                while let Some(Some(ended)) = running.next().now_or_never() {
                    self.take_in(ended)?;
                }
                if listed && !*stop.borrow() {
                    running.extend(self.go_on());
                }
                tokio::select! {
                    () = tokio::time::sleep_until(pause_ends) => break,
                    Some(event) = nodes.next() => listed |= self.take(event),
                    Some(ended) = running.next() => self.take_in(ended)?,
                }
            }
        }
    }

    /// What was decided last; the report says in full why each node is where it is.
    fn end(&mut self) -> Decision {
        for (action, why) in self.under_way.list() {
            let node = action.node().and_then(|name| self.decision.nodes.get_mut(name));
            if let Some(node) = node.filter(|_| !why.is_empty()) {
                node.message = format!("{action}: {why}");
            }
        }
        self.report.end(&self.decision, Timestamp::now());
        std::mem::take(&mut self.decision)
    }

    /// Begins the next step of each node that something was heard of, without a look at all others: agents wait for it.
    fn go_on(&mut self) -> Vec<LocalBoxFuture<'a, Ended>> {
        self.snapshot.now = Timestamp::now();
        let steps = go_on(&self.snapshot, &std::mem::take(&mut self.heard));
        steps.into_iter().map(|step| self.start(step)).collect()
    }

    fn show(&mut self, decision: &Decision) {
        let through = decision.nodes.values().filter(|node| node.stage == Stage::Done).count();
        self.rollout.progress.reached(through, decision.nodes.len(), Of::Nodes);
        let mut reasons = BTreeMap::new();
        for (name, node, before) in decision.beside(&self.decision) {
            if matches!(node.stage, Stage::Done | Stage::Do(_)) || node.message.is_empty() {
                continue;
            }
            // Whom it waits for changes with every turn of another, and thousands may wait.
            let known = |before: &Assessment| before.stage == Stage::Pending && before.reason == node.reason;
            if node.stage == Stage::Pending && before.is_some_and(known) {
                continue;
            }
            reasons.insert(name.clone(), self.report.line(name, node, self.snapshot.now));
        }
        self.rollout.progress.waiting(&reasons);
    }

    /// Tells of nodes that have failed on these.
    fn warn(&mut self, decision: &Decision) {
        for (name, tale) in self.failures.take(decision) {
            if let Some(member) = self.snapshot.members.get(name) {
                self.means.tell(&member.node, tale);
            }
        }
    }

    /// Learns from the watch; true if all Nodes are known now.
    fn take(&mut self, event: Result<watcher::Event<Node>, watcher::Error>) -> bool {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                // The stream goes on by itself.
                tracing::debug!("the watch of Nodes: {error}");
                return false;
            }
        };
        let (now, targets) = (Timestamp::now(), self.rollout.targets);
        let join = |node: NodeView| {
            let (group, target) = targets(&node);
            Member::new(node, group, target, now)
        };
        let News { heard, gone, complete } = self.sight.take(&mut self.snapshot.members, &event, now, join);
        self.heard.extend(heard);
        for name in gone {
            self.attempts.retain(|action, _| action.node() != Some(&name));
            self.decision.nodes.remove(&name);
            self.failures.forget(&name);
            self.report.forget(&name);
        }
        complete
    }

    /// The node that an action was begun with, if it is still that one.
    fn member(&mut self, action: &Action, uid: Option<&String>) -> Option<&mut Member> {
        let member = action.node().and_then(|name| self.snapshot.members.get_mut(name));
        member.filter(|member| Some(&member.node.uid) == uid)
    }

    /// Begins an action; the snapshot knows that it is under way.
    fn start(&mut self, action: Action) -> LocalBoxFuture<'a, Ended> {
        self.snapshot.busy.insert(action.clone());
        let attempt = self.attempts.get(&action).copied().unwrap_or(0);
        let member = action.node().and_then(|name| self.snapshot.members.get(name)).cloned();
        if let Some(member) = action.node().and_then(|name| self.snapshot.members.get_mut(name)) {
            match action {
                Action::Permit(_) => {
                    (member.checked, member.tested) = (None, None);
                    member.emptied = false;
                }
                Action::Step(Verb::Drain, _) => member.begin_drain(),
                _ => {}
            }
        }
        let uid = member.as_ref().map(|member| member.node.uid.clone());
        let (means, progress) = (self.means, self.rollout.progress);
        let event = event(&action);
        let under_way = self.under_way.clone();
        let quiet = action.is_look();
        if !quiet {
            progress.event(&event(EventStage::Started));
        }
        Box::pin(async move {
            let started = Instant::now();
            if attempt > 0 {
                tokio::time::sleep(retry::delay(RETRY_DELAY, attempt, random::fraction())).await;
            }
            let note = |text: String| {
                under_way.say(&action, text.clone());
                progress.event(&event(EventStage::Note(text)));
            };
            let result = loop {
                match means.run(&action, member.as_ref(), &note).await {
                    Err(error) if error.is_passing() => {
                        note(format!("{:#}", anyhow::Error::from(error)));
                        tokio::time::sleep(SILENCE_DELAY).await;
                    }
                    result => break result,
                }
            };
            if let (Ok(found), Some(member)) = (&result, &member)
                && let Some(tale) = tale(&action, member, found)
            {
                means.tell(&member.node, tale);
            }
            Ended { action, uid, started, result }
        })
    }

    /// Learns from an action's end.
    fn take_in(&mut self, ended: Ended) -> Result<(), Error> {
        let Ended { action, uid, started, result } = ended;
        self.snapshot.busy.remove(&action);
        self.under_way.end(&action);
        self.heard.extend(action.node().cloned());
        let event = event(&action);
        let found = match result {
            Ok(found) => found,
            Err(Error::Lost) => return Err(Error::Lost),
            Err(error) => {
                let why = format!("{:#}", anyhow::Error::from(error));
                self.count_failure(&action);
                // What a node that is no more could not have done to it is not tried again.
                let mut last = action.node().is_some() && self.member(&action, uid.as_ref()).is_none();
                if !last {
                    let attempts = self.attempts.entry(action.clone()).or_default();
                    *attempts += 1;
                    last = *attempts >= ATTEMPTS;
                }
                self.rollout.progress.event(&event(EventStage::Failed { why: why.clone(), last }));
                if let Some(member) = self.member(&action, uid.as_ref())
                    && last
                {
                    member.failed = Some(format!("cannot {action}: {why}"));
                }
                return Ok(());
            }
        };
        self.attempts.remove(&action);
        // To fence off, anyone's write does.
        let vain = matches!(found, Found::Overtaken(_)) && !matches!(action, Action::Fence(_));
        if let Found::Tested(Err(why)) = &found {
            self.count_failure(&action);
            self.rollout.progress.event(&event(EventStage::Failed { why: why.clone(), last: false }));
        } else if vain {
            let why = OVERTAKEN.to_owned();
            self.rollout.progress.event(&event(EventStage::Failed { why, last: false }));
        } else if !action.is_look() {
            self.rollout.progress.event(&event(EventStage::Done(started.elapsed())));
        }
        if !vain {
            self.report.note(&action);
        }
        self.learn(&action, uid.as_ref(), found);
        Ok(())
    }

    fn count_failure(&self, action: &Action) {
        if let Some(metrics) = self.rollout.metrics {
            metrics.count_failure(action);
        }
    }

    fn learn(&mut self, action: &Action, uid: Option<&String>, found: Found) {
        if let Action::Fence(name) = action {
            self.snapshot.claims.remove(name);
            self.means.claims.settle(name);
        }
        if let Action::Permit(name) = action {
            self.means.claims.settle(name);
            // It is another etcd without this one.
            self.snapshot.etcd = EtcdSeen::default();
        }
        let found = match found {
            Found::Written(node) | Found::Overtaken(node) => {
                return take_answer(&mut self.snapshot.members, &node, Timestamp::now());
            }
            Found::Etcd(etcd) => return self.snapshot.etcd.take(etcd, Timestamp::now()),
            found => found,
        };
        match (found, self.member(action, uid)) {
            (Found::Empty, Some(member)) => member.end_drain(),
            (Found::Held(why), Some(member)) => member.skipped = Some(why),
            (Found::Checked(result), Some(member)) => {
                let now = Timestamp::now();
                let failing = |why| Failing::new(member.checked.as_ref(), why, now, |_| LOOK_AGAIN);
                member.checked = Some(result.map_err(failing));
            }
            (Found::Tested(result), Some(member)) => {
                let now = Timestamp::now();
                let wait = |failures| {
                    let wait = retry::delay(TEST_AGAIN, failures, random::fraction());
                    SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX)
                };
                let failing = |why| Failing::new(member.tested.as_ref(), why, now, wait);
                member.tested = Some(result.map_err(failing));
            }
            (Found::Written(_) | Found::Overtaken(_) | Found::Etcd(_), _) | (_, None) => {}
        }
    }
}

/// What people see of an action.
fn event(action: &Action) -> impl Fn(EventStage) -> Event + use<> {
    let (host, what) = (action.node().cloned(), action.to_string());
    move |stage| Event { host: host.clone(), what: what.clone(), stage }
}

/// Whether nothing is half done if it is left at any moment.
fn only_waits(action: &Action) -> bool {
    action.is_look() || matches!(action, Action::Step(Verb::Drain | Verb::Test, _))
}

/// When figures have to be written although nothing else happens.
async fn due(metrics: Option<&MetricsFile>) {
    match metrics {
        Some(metrics) => metrics.wait().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(until: Option<Timestamp>) {
    match until {
        None => std::future::pending().await,
        Some(until) => {
            let left = until.duration_since(Timestamp::now());
            tokio::time::sleep(Duration::try_from(left).unwrap_or(Duration::ZERO)).await;
        }
    }
}
