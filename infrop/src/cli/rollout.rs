//! `infrop rollout`: nodes to other versions, in any cluster whose nodes run node-agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use common::{
    annotations,
    metadata::NodeName,
    plan::Plan,
    software::{SoftwareName, SoftwareVersion},
};
use jiff::SignedDuration;

use super::{
    BAD_INPUT, BLOCKED, DONE, INTERRUPTED, TIMED_OUT, limit,
    node_drain::PodArguments,
    output::{Output, print_json, say},
    progress::{Telling, metrics_file},
};
use crate::{
    apply::{Stop, Writer},
    cluster::{self, Clients, NodeView},
    desired::{Amount, Check as DesiredCheck, Rollout as Defaults},
    rollout::{
        Check, Outcome, Probe, Report, Rollout,
        policy::{Drain, Limits, Own, Policy},
    },
};

const HELP: &str = "\
Only versions are changed: no host is made, joined or removed, and nothing is delivered to hosts; what a version names \
(packages, contents) has to be within their reach. Each node keeps the other versions of its plan, and gets those given \
here as far as it has that software. `kubernetes=VERSION` stands for kubeadm, kubelet and kubectl.

Run it again at any time, also after it was stopped or killed: it goes on. `infrop apply` does the same with a document.

Examples:
  infrop rollout --set kubernetes=1.37.1 --set containerd=2.4.2
  infrop rollout --set reboot=2026-11-16 --node w-1 --node w-2
  infrop rollout --set containerd=2.4.2 --check 'smoke=./smoke.sh --fast'

Exit codes: 0 all nodes have their versions, 1 failed, 3 some have not (each has its reason), 4 out of time, 5 someone \
else is at work, 64 bad input, 130 interrupted.";

/// All workers: without a document there are no groups.
const WORKERS: &str = "workers";

/// All others; they go one by one in any case.
const CONTROL_PLANES: &str = "control-planes";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct RolloutArguments {
    /// The cluster [default: what KUBECONFIG names, or the usual file].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// A software and its version.
    #[arg(long = "set", value_name = "SOFTWARE=VERSION", required = true, value_parser = parse_setting)]
    settings: Vec<(SoftwareName, SoftwareVersion)>,

    /// Only these nodes.
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<NodeName>,

    /// How many workers may be away at once: a number, or a share such as 25%.
    #[arg(long, value_name = "AMOUNT", default_value = "1")]
    max_unavailable: Amount,

    /// How many workers go first, before the others.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    canary: usize,

    /// After so many failed nodes no other is begun.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    max_failed: usize,

    /// How long a node has to be well before the next one goes, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    soak: u32,

    /// How long budgets may keep pods on a node, in seconds; then it is left as it was.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = limit::seconds)]
    drain_timeout: Duration,

    /// What is checked on a node after its soak: a name, and a program with its arguments, separated by spaces. There is
    /// no shell; NODE and GROUP are in its environment, and it may take a minute.
    #[arg(long = "check", value_name = "NAME=PROGRAM ...", value_parser = parse_check)]
    checks: Vec<Check>,

    /// Have load balancers outside of the cluster leave out nodes that are drained, by a label.
    #[arg(long)]
    exclude_from_load_balancers: bool,

    /// Have pods prefer workers that do not wait for their turn, by a taint on those that do.
    #[arg(long)]
    prefer_ready: bool,

    #[command(flatten)]
    pods: PodArguments,

    /// How long it may take, in minutes.
    #[arg(long, value_name = "MINUTES", default_value = "60", value_parser = limit::minutes)]
    timeout: Duration,

    /// Go on although someone else seems to be at work; only if you know that it is dead.
    #[arg(long)]
    take_over: bool,

    /// Write figures of the rollout to this file, as Prometheus reads them: when something changed, at most once a second.
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,

    #[command(flatten)]
    telling: Telling,
}

fn parse_setting(text: &str) -> Result<(SoftwareName, SoftwareVersion), String> {
    let (name, version) = text.split_once('=').ok_or("write SOFTWARE=VERSION, such as containerd=2.4.2")?;
    let name = name.parse().map_err(|error: common::software::SoftwareError| error.to_string())?;
    let version = version.parse().map_err(|error: common::software::SoftwareError| error.to_string())?;
    Ok((name, version))
}

fn parse_check(text: &str) -> Result<Check, String> {
    let form = "write NAME=PROGRAM and its arguments, such as 'smoke=./smoke.sh --fast'";
    let (name, command) = text.split_once('=').ok_or(form)?;
    let mut words = command.split_whitespace().map(str::to_owned);
    Ok(Check {
        name: name.parse().map_err(|error: crate::desired::NameError| error.to_string())?,
        probe: Probe::Command {
            program: words.next().ok_or(form)?,
            arguments: words.collect(),
            without: Vec::new(),
        },
        limit: Duration::from_secs(DesiredCheck::default_timeout_seconds().into()),
    })
}

pub(super) async fn run(arguments: RolloutArguments, stop: Stop) -> anyhow::Result<u8> {
    let clients = Clients::of_user(arguments.kubeconfig.as_deref()).await?;
    let known = cluster::list(&clients.client).await?;
    if let Some(unknown) = arguments.nodes.iter().find(|name| !known.contains_key(*name)) {
        let known: Vec<&str> = known.keys().map(NodeName::as_str).collect();
        eprintln!("infrop: there is no node {unknown}; there are {}", known.join(", "));
        return Ok(BAD_INPUT);
    }
    let settings = settings(&arguments.settings)?;
    let only: BTreeSet<NodeName> = arguments.nodes.iter().cloned().collect();
    let progress = arguments.telling.lines();
    let metrics = metrics_file(arguments.metrics_file.as_deref())?;
    let writer = Writer::of_cluster(&clients.client, arguments.take_over, &progress).await?;
    let identity = writer.identity().to_owned();
    let rollout = Rollout {
        clients: &clients,
        identity: &identity,
        policy: policy(&arguments),
        targets: &|node| {
            let group = if node.control_plane { CONTROL_PLANES } else { WORKERS };
            (group.to_owned(), target(node, &settings, &only))
        },
        progress: &progress,
        stop,
        deadline: tokio::time::Instant::now() + arguments.timeout,
        metrics: metrics.as_ref(),
    };
    let ended = writer.during(async { Ok(rollout.run().await?) }).await;
    if let Some(metrics) = &metrics {
        metrics.write();
    }
    let (outcome, report) = ended?;
    progress.end();
    show(&report, arguments.telling.output)?;
    let (decision, code) = match outcome {
        Outcome::Ended(decision) => (decision, BLOCKED),
        Outcome::TimedOut(decision) => (decision, TIMED_OUT),
        Outcome::Stopped => {
            eprintln!("infrop: stopped; run the same command again to go on");
            return Ok(INTERRUPTED);
        }
    };
    let mut left = decision.left().peekable();
    if left.peek().is_none() {
        return Ok(DONE);
    }
    for (name, node) in left {
        eprintln!("infrop: {name}: {node}");
    }
    Ok(code)
}

fn show(report: &Report, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Json => print_json(report),
        Output::Text if report.is_empty() => say("No node was changed."),
        Output::Text => say(report),
    }
}

/// The settings by software; `kubernetes` is three packages.
fn settings(
    given: &[(SoftwareName, SoftwareVersion)],
) -> anyhow::Result<BTreeMap<SoftwareName, SoftwareVersion>> {
    let mut settings = BTreeMap::new();
    for (name, version) in given {
        if name.as_str() == "kubernetes" {
            for package in ["kubeadm", "kubelet", "kubectl"] {
                settings.insert(package.parse()?, version.clone());
            }
        } else {
            settings.insert(name.clone(), version.clone());
        }
    }
    Ok(settings)
}

fn policy(arguments: &RolloutArguments) -> Policy {
    let defaults = Defaults::default();
    let limits =
        Limits { max_unavailable: arguments.max_unavailable, canary: arguments.canary, ..Limits::default() };
    Policy {
        groups: [(WORKERS.to_owned(), limits)].into(),
        control_planes: Own::default(),
        zone_label: defaults.zone_label,
        soak: SignedDuration::from_secs(i64::from(arguments.soak)),
        max_failed: arguments.max_failed,
        windows: Vec::new(),
        drain: Drain { rules: arguments.pods.rules(), limit: arguments.drain_timeout },
        disruption: BTreeMap::new(),
        patience: SignedDuration::from_mins(i64::from(defaults.patience_minutes)),
        checks: arguments.checks.clone(),
        exclude_from_load_balancers: arguments.exclude_from_load_balancers,
        prefer_ready: arguments.prefer_ready,
    }
}

/// The plan of a node with other versions. A restart is asked of any node, other software only of those that have it.
fn target(
    node: &NodeView,
    settings: &BTreeMap<SoftwareName, SoftwareVersion>,
    only: &BTreeSet<NodeName>,
) -> Result<Plan, String> {
    let request = annotations::read_request(&node.annotations).map_err(|error| error.to_string())?;
    let mut plan = request.plan.unwrap_or_default();
    if !only.is_empty() && !only.contains(&node.name) {
        return Ok(plan);
    }
    let current = annotations::read_current(&node.annotations);
    for (name, version) in settings {
        let has = current.contains_key(name.as_str()) || plan.desired.contains_key(name);
        if has || name.as_str() == "reboot" {
            plan.desired.insert(name.clone(), version.clone());
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{reach, tests::node};

    #[test]
    fn a_node_gets_versions_of_what_it_has_and_keeps_the_others() {
        let given = ["kubernetes=1.37.1", "haproxy=3.0", "reboot=x"].map(|text| parse_setting(text).unwrap());
        let settings = settings(&given).unwrap();
        let version = |name: &str, version: &str| (name.parse().unwrap(), version.parse().unwrap());
        let before = Plan::new([version("kubelet", "1.36.4"), version("sysctl", "sha256:1")].into());
        let mut node = node("w-1", false);
        reach(&mut node, &before, jiff::Timestamp::UNIX_EPOCH);
        let expected =
            [version("kubelet", "1.37.1"), version("sysctl", "sha256:1"), version("reboot", "x")].into();
        assert_eq!(target(&node, &settings, &BTreeSet::new()).unwrap(), Plan::new(expected));
        let others = ["w-2".parse().unwrap()].into();
        assert_eq!(target(&node, &settings, &others).unwrap(), before);
    }

    #[test]
    fn checks_are_a_name_and_words() {
        let Check { name, probe, limit } = parse_check("smoke=./smoke.sh  --url http://a?b=c").unwrap();
        assert_eq!((name.as_str(), limit), ("smoke", Duration::from_mins(1)));
        let Probe::Command { program, arguments, .. } = probe else { panic!("{probe:?}") };
        assert_eq!(
            (program.as_str(), arguments),
            ("./smoke.sh", vec!["--url".into(), "http://a?b=c".into()])
        );
        for text in ["", "smoke", "smoke=", "smoke=  ", "=x", "Smoke=x"] {
            assert!(parse_check(text).is_err(), "{text}");
        }
    }

    #[test]
    fn settings_are_a_name_and_a_version() {
        for text in ["", "kubelet", "kubelet=", "=1", "Kubelet=1", "kubelet=1 2"] {
            assert!(parse_setting(text).is_err(), "{text}");
        }
    }
}
