//! `infrop plan`: what `apply` would do, without doing it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use clap::Args;
use common::metadata::NodeName;
use serde::Serialize;

use super::{
    CHANGES, DONE, Shared,
    apply::ahead,
    infrastructure::DocumentArguments,
    output::{Output, print_json, say, table},
};
use crate::{
    apply::{self, Action, Agreed, Cluster, Context, Decision, Removals, Snapshot},
    cluster::{self, Access, DrainRules, NodeView},
    rollout::{
        self, Estimate,
        assess::{Assessment, Verb},
        decide::Action as RolloutAction,
        reason::Reason,
        snapshot::{Member, Snapshot as RolloutSnapshot},
    },
};

/// Of a control plane without another one.
const SOLE: &str = "it is the only control plane: the API may not answer meanwhile";

/// How many hosts are asked at once.
const PARALLEL: usize = 32;

const HELP: &str = "\
Looks at providers, hosts and cluster, and changes nothing, also on this computer: what `apply` would build or install \
there first is shown. It shows all steps in their order, as they will be if each \
goes well; hosts take theirs side by side. Removals are shown as `apply --yes` with the same --max-delete would do them. \
Drains are shown with what they would meet now: budgets that hold pods, and pods that nothing would make again. How long \
nodes take is estimated by what nodes of this cluster took before.

Example: infrop plan -f infrastructure.yaml -o json

Exit codes: 0 nothing to do, 2 there is something to do, 1 failed, 64 bad input.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct PlanArguments {
    #[command(flatten)]
    document: DocumentArguments,

    /// The form of the answer.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,

    /// How many computes `apply` may give back.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    max_delete: usize,
}

/// A step of the plan.
#[derive(Debug, Serialize)]
struct Row {
    host: Option<String>,
    what: String,
    reason: Option<String>,
}

/// What programs are told.
#[derive(Debug, Serialize)]
struct Plan {
    steps: Vec<Row>,
    /// How long the rollout among them takes.
    estimate: Option<Estimate>,
}

pub(super) async fn run(arguments: PlanArguments, shared: &Shared) -> anyhow::Result<u8> {
    let PlanArguments { document, output, max_delete } = arguments;
    let last = document.look(shared).await?;
    let mut contexts = Vec::new();
    for version in ahead(&last, PARALLEL).await? {
        contexts.push(document.look_at(version, shared).await?);
    }
    contexts.push(last);
    let Plan { steps: rows, estimate } = look(&contexts, max_delete).await?;
    let code = if rows.is_empty() { DONE } else { CHANGES };
    match output {
        Output::Json => print_json(&Plan { steps: rows, estimate })?,
        Output::Text if rows.is_empty() => say("Nothing to do: all is as the document says.")?,
        Output::Text => {
            let rows = rows
                .into_iter()
                .map(|row| [row.host.unwrap_or_default(), row.what, row.reason.unwrap_or_default()]);
            say(table(["HOST", "STEP", "REASON"], rows))?;
            if let Some(estimate) = estimate {
                say(format_args!("\n{estimate}."))?;
            }
        }
    }
    Ok(code)
}

/// What would be done, with one Kubernetes version after the other.
async fn look(contexts: &[Context], max_delete: usize) -> anyhow::Result<Plan> {
    let first = contexts.first().context("nothing is wanted")?;
    let (mut snapshot, access) = apply::observe(first, PARALLEL).await?;
    // What nobody agreed to yet is what people look at a plan for.
    snapshot.removals = Removals { limit: max_delete, agreed: Agreed::All, ..Removals::default() };
    let mut plan = Plan { steps: Vec::new(), estimate: None };
    for context in contexts {
        apply::aim(context, &mut snapshot);
        let Plan { steps, estimate } = look_ahead(context, &mut snapshot, access.as_ref()).await;
        plan.steps.extend(steps);
        plan.estimate = match (plan.estimate, estimate) {
            (Some(before), Some(after)) => Some(before.then(after)),
            (before, after) => before.or(after),
        };
    }
    Ok(plan)
}

/// What would be done with one version, and in the snapshot what would be there after it.
async fn look_ahead(context: &Context, snapshot: &mut Snapshot, access: Option<&Access>) -> Plan {
    if !context.unbuilt.is_empty() {
        // What cannot be said of a host for want of it is no obstacle.
        for host in snapshot.hosts.values_mut() {
            host.wanted = host.wanted.take().filter(Result::is_ok);
        }
    }
    let (steps, end, world) = apply::foresee(snapshot);
    let before = apply::plan_rollout(&context.infrastructure, &world);
    let Foreseen { rollout, stuck, estimate, after } = before.as_ref().map(roll_out).unwrap_or_default();
    let emptied = emptied(&steps, &rollout, before.as_ref());
    let drains = drains(&emptied, snapshot, access).await;
    let mut rows: Vec<Row> = unbuilt(context).chain(rows(&steps, &end, &drains)).collect();
    rows.extend(rollout_rows(&rollout, stuck, &drains, before.as_ref()));
    *snapshot = world;
    if let Cluster::There(view) = &mut snapshot.cluster {
        view.nodes.extend(after);
    }
    Plan { steps: rows, estimate }
}

/// What is done on this computer before all other steps.
fn unbuilt(context: &Context) -> impl Iterator<Item = Row> {
    context.unbuilt.iter().map(|what| Row {
        host: None,
        what: what.clone(),
        reason: Some("on this computer; what hosts need is known only after it".to_owned()),
    })
}

/// The rollout after all other steps.
#[derive(Debug, Default)]
struct Foreseen {
    rollout: Vec<RolloutAction>,
    /// The nodes that would not be through at its end, and why.
    stuck: BTreeMap<NodeName, String>,
    /// How long it will take.
    estimate: Option<Estimate>,
    /// The nodes at its end.
    after: BTreeMap<NodeName, NodeView>,
}

fn roll_out(snapshot: &RolloutSnapshot) -> Foreseen {
    let (rollout, end, world) = rollout::foresee(snapshot);
    let estimate = rollout::estimate(snapshot, &rollout);
    // What nobody knows the versions of is named with the other steps.
    let stuck = end.left().filter(|(_, node)| node.reason != Reason::TargetUnknown);
    let stuck = stuck.map(|(name, node)| (name.clone(), node.to_string())).collect();
    let after = world.members.into_iter().map(|(name, member)| (name, member.node)).collect();
    Foreseen { rollout, stuck, estimate, after }
}

/// What is to be known before a node is begun: until when its windows are closed, and that nobody stands in for it.
fn permits(snapshot: &RolloutSnapshot) -> BTreeMap<NodeName, String> {
    let planes: Vec<_> = snapshot.members.values().filter(|member| member.node.control_plane).collect();
    let sole = match planes[..] {
        [sole] => Some(&sole.node.name),
        _ => None,
    };
    let remark = |(name, node): (NodeName, Assessment)| {
        let closed = (node.reason == Reason::WindowClosed).then(|| node.to_string());
        let away = (sole == Some(&name)).then(|| SOLE.to_owned());
        let remarks: Vec<String> = closed.into_iter().chain(away).collect();
        (!remarks.is_empty()).then(|| (name, remarks.join("; ")))
    };
    rollout::decide::decide(snapshot).nodes.into_iter().filter_map(remark).collect()
}

/// Steps with what is to be known of them; who may not be begun yet has the time from which on it may.
fn rollout_rows(
    steps: &[RolloutAction],
    stuck: BTreeMap<NodeName, String>,
    drains: &BTreeMap<NodeName, String>,
    before: Option<&RolloutSnapshot>,
) -> Vec<Row> {
    let permits = before.map(permits).unwrap_or_default();
    // Looks go without saying.
    let shown = steps.iter().filter(|step| !step.is_look());
    let change = |name| before.and_then(|before| before.members.get(name)).map(Member::change);
    let rows = shown.map(|step| Row {
        host: step.node().map(ToString::to_string),
        what: step.to_string(),
        reason: match step {
            RolloutAction::Step(Verb::Drain, name) => drains.get(name).cloned(),
            RolloutAction::Step(Verb::Plan, name) => change(name),
            RolloutAction::Permit(name) => permits.get(name).cloned(),
            _ => None,
        },
    });
    let stuck = stuck.into_iter().map(|(name, why)| Row {
        host: Some(name.to_string()),
        what: "nothing".to_owned(),
        reason: Some(why),
    });
    rows.chain(stuck).collect()
}

/// The nodes whose pods go, each with the rules by which they will: a rollout has those of the node's group.
fn emptied<'a>(
    steps: &'a [Action],
    rollout: &'a [RolloutAction],
    before: Option<&RolloutSnapshot>,
) -> BTreeMap<&'a NodeName, DrainRules> {
    let drained = rollout.iter().filter_map(|step| match step {
        RolloutAction::Step(Verb::Drain, name) => {
            let RolloutSnapshot { members, policy, .. } = before?;
            Some((name, policy.of(members.get(name)?).drain().rules.clone()))
        }
        _ => None,
    });
    let leaving = steps.iter().filter_map(|step| match step {
        Action::Remove(name) => Some((name, DrainRules::default())),
        _ => None,
    });
    drained.chain(leaving).collect()
}

/// What the drains of nodes would meet, if anything.
async fn drains(
    nodes: &BTreeMap<&NodeName, DrainRules>,
    snapshot: &Snapshot,
    access: Option<&Access>,
) -> BTreeMap<NodeName, String> {
    let mut drains = BTreeMap::new();
    let Some(direct) = access.map(|access| &access.direct) else { return drains };
    for (&name, rules) in nodes {
        if snapshot.cluster.node(name).is_none() {
            continue;
        }
        let sentences = match cluster::preview(direct, name, rules).await {
            Ok(preview) => preview.sentences().join("; "),
            // The plan is right all the same.
            Err(error) => format!("what its drain would meet is unknown: {:#}", anyhow::Error::new(error)),
        };
        if !sentences.is_empty() {
            drains.insert(name.clone(), sentences);
        }
    }
    drains
}

/// Waits go without saying, unless there is nothing else.
fn rows(steps: &[Action], end: &Decision, drains: &BTreeMap<NodeName, String>) -> Vec<Row> {
    let Decision { actions: _, waiting, blocked } = end;
    let only_waits = steps.iter().all(Action::is_wait);
    let actions = steps.iter().filter(|action| only_waits || !action.is_wait()).map(|action| Row {
        host: action.host().map(ToString::to_string),
        what: action.to_string(),
        reason: match action {
            Action::Remove(name) => drains.get(name).cloned(),
            _ => None,
        },
    });
    let waiting = waiting.iter().map(|(name, why)| Row {
        host: Some(name.to_string()),
        what: "wait".to_owned(),
        reason: Some(why.clone()),
    });
    let blocked = blocked.iter().map(|(subject, why)| Row {
        host: Some(subject.clone()),
        what: "nothing".to_owned(),
        reason: Some(why.clone()),
    });
    actions.chain(waiting).chain(blocked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        apply::testing::{Fake, lab_context},
        cluster::Fate,
        rollout::{
            policy::Limits,
            tests::{plan, snapshot},
            window::Window,
        },
    };

    #[test]
    fn drains_of_a_rollout_are_foreseen_by_the_rules_of_their_group() {
        let [leaving, changed, both] = ["w-1", "w-2", "w-3"].map(|name| name.parse::<NodeName>().unwrap());
        let steps = [Action::Remove(leaving.clone()), Action::Remove(both.clone())];
        let step = |verb, name: &NodeName| RolloutAction::Step(verb, name.clone());
        let rollout = [step(Verb::Cordon, &leaving), step(Verb::Drain, &changed), step(Verb::Drain, &both)];
        let mut before = snapshot(&["w-1", "w-2", "w-3"], &plan("1.37.1"));
        let mut own = before.policy.drain.clone();
        own.rules.unmanaged = Fate::Evict;
        for (own, expected) in [(None, Fate::Refuse), (Some(own), Fate::Evict)] {
            let mut limits = Limits::default();
            limits.own.drain = own;
            before.policy.groups.insert("w".into(), limits);
            let found = emptied(&steps, &rollout, Some(&before));
            let found: Vec<_> = found.iter().map(|(name, rules)| (name.as_str(), rules.unmanaged)).collect();
            assert_eq!(found, [("w-1", Fate::Refuse), ("w-2", expected), ("w-3", Fate::Refuse)]);
        }
    }

    #[test]
    fn what_is_to_be_known_before_a_node_is_begun_is_beside_its_permit() {
        let permit = |world: &RolloutSnapshot| -> Vec<String> {
            let rows = rollout_rows(&roll_out(world).rollout, BTreeMap::new(), &BTreeMap::new(), Some(world));
            let permits = rows.into_iter().filter(|row| row.what.starts_with("permit"));
            permits.map(|row| row.reason.unwrap_or_default()).collect()
        };
        let mut one = snapshot(&["cp-1", "w-1"], &plan("1.37.1"));
        assert_eq!(permit(&one), [SOLE, ""]);
        assert_eq!(permit(&snapshot(&["cp-1", "cp-2", "cp-3", "w-1"], &plan("1.37.1"))), [""; 4]);
        one.policy.windows = vec![Window {
            days: Vec::new(),
            start: jiff::civil::time(20, 0, 0, 0),
            length: jiff::SignedDuration::from_hours(1),
            zone: jiff::tz::TimeZone::UTC,
        }];
        let closed = "WindowClosed: the next window opens at 2026-11-16T20:00:00Z";
        assert_eq!(permit(&one), [format!("{closed}; {SOLE}"), closed.to_owned()]);
    }

    #[tokio::test]
    async fn what_is_built_here_comes_before_all_other_steps() {
        let directory = tempfile::tempdir().unwrap();
        let mut context = lab_context(Fake::new(&directory.path().join("writer.json")));
        let names = |rows: &[Row]| rows.iter().map(|row| row.what.clone()).collect::<Vec<_>>();
        let plan = look(std::slice::from_ref(&context), 1).await.unwrap();
        assert_eq!(names(&plan.steps).first().map(String::as_str), Some("create control-1"));
        context.unbuilt = vec!["build the bundle of Kubernetes 1.37.1".to_owned()];
        let plan = look(&[context], 1).await.unwrap();
        assert_eq!(names(&plan.steps)[..2], ["build the bundle of Kubernetes 1.37.1", "create control-1"]);
    }
}
