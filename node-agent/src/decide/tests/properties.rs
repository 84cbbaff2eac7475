//! What holds for any annotations, any journal and any host.

use std::collections::BTreeMap;

use common::{
    annotations::{
        self, CHANGES_ALLOWED, PAUSED, PERMITTED_PLAN, PLAN, STATE, desired_version, shorten, write_plan,
    },
    plan::SOFTWARE_LIMIT,
    state::State,
};
use proptest::prelude::*;

use super::{simulation::case, *};
use crate::report::report;

/// The largest that all annotations of an object may be together.
const LARGEST: usize = 256 << 10;

type Annotations = BTreeMap<String, String>;

fn plans() -> Vec<Plan> {
    let hash = "sha256:0123456789abcdef";
    vec![
        kubernetes(OLD),
        kubernetes(NEW),
        kubernetes("1.38.0"),
        plan(&[("containerd", "2"), ("kernel", "2")]),
        plan(&[("reboot", "1")]),
        plan(&[("sysctl", hash), ("haproxy", "2")]),
        plan(&[]),
    ]
}

fn some_plan() -> impl Strategy<Value = Plan> {
    prop::sample::select(plans())
}

fn garbage() -> impl Strategy<Value = String> {
    let repeated = (any::<char>(), 0..=LARGEST);
    prop_oneof![
        ".{0,60}",
        "[\\x00-\\x1f\\x7f-\\u{9f}\"\\\\]{0,300}",
        "[0-9v.:~+-]{0,20}",
        repeated.prop_map(|(c, size)| c.to_string().repeat(size / c.len_utf8())),
        prop::sample::select(vec!["true", "false", "TRUE", "1.37.1", "2", ""]).prop_map(str::to_owned),
    ]
}

/// Annotations that cannot be a good request, whatever else stands beside.
fn nonsense() -> impl Strategy<Value = Annotations> {
    let name_like =
        prop_oneof!["[A-Z_]{1,9}", "-[a-z]{0,5}", Just(String::new()), "[a-z]{64,300}", garbage()];
    let bad_name = name_like.prop_filter("a name", |text| text.parse::<SoftwareName>().is_err());
    let bad_version = garbage().prop_filter("a version", |text| text.parse::<SoftwareVersion>().is_err());
    let unknown = "x[a-z]{1,20}".prop_map(|text| write_plan(&plan(&[(&text, "1"), ("kubelet", NEW)])));
    let many = (SOFTWARE_LIMIT + 1..SOFTWARE_LIMIT + 40).prop_map(|count| {
        let names: Vec<String> = (0..count).map(|number| format!("x{number}")).collect();
        write_plan(&plan(&names.iter().map(|one| (one.as_str(), "1")).collect::<Vec<_>>()))
    });
    let set = |key: String, value: String| {
        move |plan: Plan| {
            let mut written = write_plan(&plan);
            written.insert(key.clone(), value.clone());
            written
        }
    };
    prop_oneof![
        (some_plan(), bad_name, garbage())
            .prop_map(
                move |(plan, name, value)| set(format!("alpha.{name}.caos.ch/desired-version"), value)(plan)
            ),
        (some_plan(), bad_version)
            .prop_map(move |(plan, value)| set(desired_version(&name("kubelet")), value)(plan)),
        // The hash of another plan, or none at all.
        (some_plan(), some_plan())
            .prop_filter("two plans", |(one, two)| one != two)
            .prop_map(move |(one, two)| set(PLAN.into(), two.id().to_string())(one)),
        (some_plan(), garbage()).prop_map(move |(plan, hash)| set(PLAN.into(), hash)(plan)),
        some_plan().prop_filter("a version", |plan| !plan.desired.is_empty()).prop_map(|plan| {
            let mut written = write_plan(&plan);
            written.remove(PLAN);
            written
        }),
        unknown,
        many,
    ]
}

/// What the permit says it is for.
#[derive(Debug, Clone)]
enum For {
    /// It does not say.
    Anything,
    /// The plan that stands beside it, if there is one.
    This,
    /// Nothing yet, or a plan that is another one but by chance.
    Text(String),
}

fn permitted_plan() -> impl Strategy<Value = For> {
    let text =
        prop_oneof![Just(String::new()), some_plan().prop_map(|plan| plan.id().to_string()), garbage(),];
    prop_oneof![2 => Just(For::Anything), 2 => Just(For::This), 1 => text.prop_map(For::Text)]
}

/// With a permit, for this plan or another, and a pause as they come.
fn with_permit(base: impl Strategy<Value = Annotations>) -> impl Strategy<Value = Annotations> {
    let permit = prop_oneof![4 => Just(Some("true".to_owned())), 1 => prop::option::of(garbage())];
    let paused = prop::option::weighted(0.1, garbage());
    (base, permit, permitted_plan(), paused).prop_map(|(mut all, permit, permitted, paused)| {
        let permitted = match permitted {
            For::Anything => None,
            For::This => all.get(PLAN).cloned(),
            For::Text(text) => Some(text),
        };
        all.extend(permitted.map(|value| (PERMITTED_PLAN.to_owned(), value)));
        all.extend(permit.map(|value| (CHANGES_ALLOWED.to_owned(), value)));
        all.extend(paused.map(|value| (PAUSED.to_owned(), value)));
        all
    })
}

fn any_annotations() -> impl Strategy<Value = Annotations> {
    let foreign = prop::collection::btree_map("[a-z./]{0,20}", garbage(), 0..3);
    let base =
        prop_oneof![3 => some_plan().prop_map(|plan| write_plan(&plan)), 1 => nonsense(), 1 => foreign];
    with_permit(base)
}

#[derive(Debug, Clone)]
enum Word {
    Node(Annotations),
    Metadata(Plan),
    Silence(i64),
    Nothing,
}

impl Word {
    fn asked(&self) -> Asked {
        match self {
            Self::Node(all) => Asked::Node(annotations::read_request(all)),
            Self::Metadata(plan) => Asked::Metadata(plan.clone()),
            Self::Silence(since) => Asked::Silence { since: at(*since) },
            Self::Nothing => Asked::Nothing,
        }
    }
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        5 => any_annotations().prop_map(Word::Node),
        2 => some_plan().prop_map(Word::Metadata),
        3 => (0_i64..2000).prop_map(Word::Silence),
        1 => Just(Word::Nothing),
    ]
}

/// A journal that its own methods made, in any order.
fn journal() -> impl Strategy<Value = Journal> {
    let origin = || prop::sample::select(vec![Origin::Metadata, Origin::Node]);
    let step = (0_usize..10, some_plan(), origin(), garbage(), 0_i64..2000);
    prop::collection::vec(step, 0..12).prop_map(|steps| {
        let mut journal = Journal::default();
        for (kind, plan, origin, text, second) in steps {
            let boot = BootId::new(if second % 2 == 0 { "first" } else { "second" });
            let failed = Failed { reason: Reason::PackageFailed, message: shorten(&text) };
            match kind {
                0 => journal.begin(Step::Change(name("kubelet")), &boot),
                1 => journal.begin(Step::Reboot, &boot),
                2 => journal.end_step(),
                3 => journal.fail(failed, at(second), LIMITS, 0.5),
                4 if second % 4 == 0 => journal.give_up(failed, at(second)),
                5 => journal.recover(&boot, at(second), LIMITS),
                6 if second % 3 == 0 => journal.finish(at(second)),
                6 => drop(journal.retry()),
                7 if second % 3 == 0 => journal.stand(Standing::At(plan.id())),
                7 => journal.stand(Standing::Missed(plan.id())),
                8 => drop(journal.hear(&permitted(&plan))),
                _ => journal.accept(plan, origin, true, at(second)),
            }
        }
        journal
    })
}

fn any_case() -> impl Strategy<Value = Case> {
    (case(), journal(), 0_i64..3000).prop_map(|(case, journal, now)| Case { now: at(now), journal, ..case })
}

/// Whether the annotations themselves, not our reading of them, permit exactly this plan.
fn permits(all: &Annotations, plan: &Plan) -> bool {
    let asked: Annotations = all
        .iter()
        .filter(|(key, _)| *key == PLAN || key.ends_with("/desired-version"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    all.get(CHANGES_ALLOWED).is_some_and(|value| value == "true")
        && all.get(PERMITTED_PLAN).is_none_or(|value| *value == plan.id().to_string())
        && !all.contains_key(PAUSED)
        && asked == write_plan(plan)
}

/// What people and the Node get to read.
fn is_presentable(case: &Case, rest: &Rest) {
    let Rest { phase, reason, message, .. } = rest;
    assert!(!message.is_empty() && message.len() < 2000, "{message}");
    assert!(!message.contains(char::is_control), "{message:?}");
    let state = State {
        phase: *phase,
        reason: *reason,
        message: message.clone(),
        since: case.now,
        attempt: u32::MAX,
        boot_id: "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0".into(),
        agent_version: "0.1.0".into(),
    };
    let report = report(&case.host, &case.journal, &state);
    assert!(report[STATE].len() < 4096, "{}", report[STATE]);
}

/// Whether the host has all that a plan asks for.
pub(super) fn is_at(case: &Case, plan: &Plan) -> bool {
    wanted(plan, &case.host).iter().all(|(name, version)| {
        let observed = case.host.observed(name.as_str()).unwrap();
        !observed.needs_change(version) && !observed.needs_reboot(version)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_host_is_touched_only_by_leave(case in any_case(), word in word()) {
        let decision = case.decide(&word.asked());
        let active = case.journal.active.as_ref();
        let (plan, origin) = match &decision {
            Decision::Accept { plan, permitted: false, .. } => {
                // Nothing will be changed: services are looked at.
                prop_assert!(case.journal.unverified && is_at(&case, plan));
                return Ok(());
            }
            Decision::Accept { plan, origin, permitted: true } => (plan, *origin),
            Decision::Change { software, version } => {
                let active = active.unwrap();
                let part = (software.clone(), version.clone());
                prop_assert!(wanted(&active.plan, &case.host).contains(&part));
                (&active.plan, active.origin)
            }
            Decision::Reboot => (&active.unwrap().plan, active.unwrap().origin),
            Decision::Rest(rest) => {
                is_presentable(&case, rest);
                return Ok(());
            }
            Decision::Finish { origin } => {
                prop_assert_eq!(*origin, active.unwrap().origin);
                return Ok(());
            }
            Decision::GiveUp(_) => return Ok(()),
        };
        match word {
            Word::Node(all) => prop_assert!(origin == Origin::Node && permits(&all, plan)),
            Word::Metadata(asked) => {
                prop_assert!(origin == Origin::Metadata && *plan == asked && !case.host.facts.joined);
            }
            Word::Silence(since) => {
                let active = active.unwrap();
                prop_assert!(active.plan == *plan && active.origin == Origin::Node && !active.withdrawn);
                prop_assert!(case.now.duration_since(at(since)) >= PATIENCE);
                prop_assert!(!matches!(decision, Decision::Accept { .. }), "silence began a plan");
            }
            Word::Nothing => prop_assert!(false, "nobody asked"),
        }
    }

    #[test]
    fn nonsense_is_refused_in_a_few_words(case in any_case(), all in with_permit(nonsense())) {
        let rest = case.rest(&Asked::Node(annotations::read_request(&all)));
        prop_assert_eq!(rest.phase, Phase::Refused, "{}", rest.message);
        prop_assert!(matches!(rest.standing, Standing::Keep | Standing::Missed(_)));
        is_presentable(&case, &rest);
    }
}
