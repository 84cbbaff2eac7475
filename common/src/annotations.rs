//! The annotations of a Node that infrop and node-agent speak through. Who writes which: docs/usage/annotations.md.

use std::collections::BTreeMap;

use crate::{
    plan::{Plan, PlanId, SOFTWARE_LIMIT},
    software::{SoftwareName, SoftwareVersion},
    state::Reason,
};

/// infrop: `true` is the permit.
pub const CHANGES_ALLOWED: &str = "alpha.node.caos.ch/changes-allowed";
/// infrop: the plan that the permit is for, empty until it is written: a plan that stood there before must not be begun
/// while pods still have to go. Without it a permit is for any plan.
pub const PERMITTED_PLAN: &str = "alpha.node.caos.ch/permitted-plan";
/// infrop: the hash of all desired versions, written in one patch with them.
pub const PLAN: &str = "alpha.node.caos.ch/plan";
/// infrop: the rollout that cordoned the node.
pub const CORDONED_BY: &str = "alpha.node.caos.ch/cordoned-by";
/// infrop: the rollout that took the node from load balancers outside of the cluster.
pub const EXCLUDED_BY: &str = "alpha.node.caos.ch/excluded-by";
/// A person: why nothing is to change.
pub const PAUSED: &str = "alpha.node.caos.ch/paused";
/// infrop: when it began with the node, and how long the node took before, as JSON.
pub const HISTORY: &str = "alpha.node.caos.ch/history";
/// node-agent: `true` if the node is at the plan in [`PLAN_OBSERVED`].
pub const READY: &str = "alpha.node.caos.ch/ready";
/// node-agent: the plan that [`READY`] and the current versions speak of.
pub const PLAN_OBSERVED: &str = "alpha.node.caos.ch/plan-observed";
/// node-agent: what it does and why, as JSON ([`crate::state::State`]).
pub const STATE: &str = "alpha.node.caos.ch/state";

/// The keys with a fixed name that node-agent, and only it, writes. The admission policies name them, too.
pub const AGENTS_KEYS: [&str; 3] = [READY, PLAN_OBSERVED, STATE];
/// The keys with a fixed name that infrop and people write, and no node.
pub const OTHERS_KEYS: [&str; 7] =
    [CHANGES_ALLOWED, PERMITTED_PLAN, PLAN, CORDONED_BY, EXCLUDED_BY, PAUSED, HISTORY];

const PREFIX: &str = "alpha.";
const DESIRED_SUFFIX: &str = ".caos.ch/desired-version";
const CURRENT_SUFFIX: &str = ".caos.ch/current-version";

/// infrop: the version to reach.
pub fn desired_version(software: &SoftwareName) -> String {
    format!("{PREFIX}{software}{DESIRED_SUFFIX}")
}

/// node-agent: the version verified on the host.
pub fn current_version(software: &SoftwareName) -> String {
    format!("{PREFIX}{software}{CURRENT_SUFFIX}")
}

/// Whether node-agent, and only it, writes this key.
pub fn is_agents(key: &str) -> bool {
    AGENTS_KEYS.contains(&key) || between(key, CURRENT_SUFFIX).is_some()
}

/// Whether this is the desired version of a software.
pub fn is_desired_version(key: &str) -> bool {
    between(key, DESIRED_SUFFIX).is_some()
}

fn between<'a>(key: &'a str, suffix: &str) -> Option<&'a str> {
    key.strip_prefix(PREFIX)?.strip_suffix(suffix)
}

/// What infrop and people wrote on a Node, as far as it can be understood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// Whether there is a permit for the plan. Anything but `true` is none.
    pub permit: bool,
    /// Why a person paused the node.
    pub paused: Option<String>,
    /// The plan; none if nobody wrote one.
    pub plan: Option<Plan>,
}

/// Annotations that make no sense together. Nothing may be changed because of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A desired version cannot be read.
    #[error("annotation {key}: {why}")]
    Invalid {
        /// The key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// There are desired versions, but no hash that says they are complete.
    #[error("there are desired versions, but no annotation {PLAN}: it is written in the same patch")]
    NoHash,
    /// The hash is of other versions.
    #[error("annotation {PLAN} is not the hash of the desired versions, which is {expected}")]
    WrongHash {
        /// What it would have to be.
        expected: PlanId,
    },
    /// No host has so much software.
    #[error("there are more than {SOFTWARE_LIMIT} desired versions")]
    TooMany,
}

impl RequestError {
    /// The code people and programs see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Invalid { .. } | Self::TooMany => Reason::InvalidAnnotation,
            Self::NoHash | Self::WrongHash { .. } => Reason::PlanMismatch,
        }
    }
}

/// What infrop and people ask of a node.
pub fn read_request(annotations: &BTreeMap<String, String>) -> Result<Request, RequestError> {
    let mut desired = BTreeMap::new();
    for (key, value) in annotations {
        let Some(software) = between(key, DESIRED_SUFFIX) else { continue };
        let invalid = |why: String| RequestError::Invalid { key: shorten(key), why };
        let software: SoftwareName =
            software.parse().map_err(|error: crate::software::SoftwareError| invalid(error.to_string()))?;
        let version: SoftwareVersion =
            value.parse().map_err(|error: crate::software::SoftwareError| invalid(error.to_string()))?;
        desired.insert(software, version);
        if desired.len() > SOFTWARE_LIMIT {
            return Err(RequestError::TooMany);
        }
    }
    let plan = match annotations.get(PLAN) {
        None if desired.is_empty() => None,
        None => return Err(RequestError::NoHash),
        Some(hash) => {
            let plan = Plan::new(desired);
            let expected = plan.id();
            if hash.as_str() != expected.as_str() {
                return Err(RequestError::WrongHash { expected });
            }
            Some(plan)
        }
    };
    let is_for_plan =
        |permitted: &String| plan.as_ref().is_some_and(|plan| plan.id().as_str() == permitted.as_str());
    Ok(Request {
        permit: annotations.get(CHANGES_ALLOWED).is_some_and(|value| value == "true")
            && annotations.get(PERMITTED_PLAN).is_none_or(is_for_plan),
        paused: annotations.get(PAUSED).map(|text| shorten(text)),
        plan,
    })
}

/// The versions that node-agent verified, by software.
pub fn read_current(annotations: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let versions = annotations
        .iter()
        .filter_map(|(key, value)| Some((between(key, CURRENT_SUFFIX)?.to_owned(), shorten(value))));
    versions.collect()
}

/// What infrop writes for a plan: one patch with all of it, so that the hash is never of other versions.
pub fn write_plan(plan: &Plan) -> BTreeMap<String, String> {
    let versions =
        plan.desired.iter().map(|(software, version)| (desired_version(software), version.to_string()));
    versions.chain([(PLAN.to_owned(), plan.id().to_string())]).collect()
}

/// As much of a text from outside as a message can carry, without control characters.
pub fn shorten(text: &str) -> String {
    const SHOWN: usize = 200;
    let mut start: String = text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN).is_some() {
        start.push('…');
    }
    start
}

/// The start and the end of a message from outside, where what was tried and what went wrong stand; without control
/// characters.
pub fn shorten_middle(text: &str) -> String {
    const START: usize = 80;
    const END: usize = 320;
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let length = text.chars().count();
    if length <= START + END {
        return text.chars().map(printable).collect();
    }
    let start: String = text.chars().take(START).map(printable).collect();
    let end: String = text.chars().skip(length - END).map(printable).collect();
    format!("{start} … {end}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn sample() -> Plan {
        let versions = [("kubelet", "1.37.1"), ("containerd", "2.4.2")];
        Plan::new(versions.map(|(name, version)| (name.parse().unwrap(), version.parse().unwrap())).into())
    }

    #[test]
    fn what_infrop_writes_is_read() {
        let mut written = write_plan(&sample());
        written.insert(CHANGES_ALLOWED.into(), "true".into());
        let request = read_request(&written).unwrap();
        assert_eq!(request, Request { permit: true, paused: None, plan: Some(sample()) });
    }

    #[test]
    fn the_middle_of_a_long_message_goes() {
        assert_eq!(shorten_middle("short\ntext"), "short text");
        let text = format!("tried{}cause", "é".repeat(1000));
        let short = shorten_middle(&text);
        assert!(short.starts_with("triedé") && short.ends_with("écause") && short.chars().count() == 403);
    }

    #[test]
    fn a_permit_that_names_a_plan_is_for_no_other() {
        let mut written = write_plan(&sample());
        written.insert(CHANGES_ALLOWED.into(), "true".into());
        let id = sample().id().to_string();
        for (permitted, expected) in
            [(None, true), (Some(id.as_str()), true), (Some(""), false), (Some("5482797c3a09"), false)]
        {
            written.remove(PERMITTED_PLAN);
            written.extend(permitted.map(|permitted| (PERMITTED_PLAN.into(), permitted.into())));
            assert_eq!(read_request(&written).unwrap().permit, expected, "{permitted:?}");
        }
    }

    #[test]
    fn a_permit_is_true_and_nothing_else() {
        for value in ["false", "True", "TRUE", " true", "true ", "1", "yes", ""] {
            assert!(!read_request(&annotations(&[(CHANGES_ALLOWED, value)])).unwrap().permit, "{value:?}");
        }
        assert_eq!(read_request(&BTreeMap::new()).unwrap(), Request::default());
    }

    #[test]
    fn an_incomplete_or_foreign_plan_is_refused() {
        let kubelet = desired_version(&"kubelet".parse().unwrap());
        let mut only_versions = write_plan(&sample());
        only_versions.remove(PLAN);
        assert_eq!(read_request(&only_versions), Err(RequestError::NoHash));
        let mut one_missing = write_plan(&sample());
        one_missing.remove(&kubelet);
        assert!(matches!(read_request(&one_missing), Err(RequestError::WrongHash { .. })));
        let empty = annotations(&[(PLAN, "000000000000")]);
        assert!(matches!(read_request(&empty), Err(RequestError::WrongHash { .. })));
        for (key, value) in [
            (kubelet.as_str(), "1.37.1\n"),
            ("alpha.Kubelet.caos.ch/desired-version", "1"),
            ("alpha..caos.ch/desired-version", "1"),
        ] {
            let mut garbage = write_plan(&sample());
            garbage.insert(key.to_owned(), value.to_owned());
            assert_eq!(read_request(&garbage).unwrap_err().reason(), Reason::InvalidAnnotation, "{key}");
        }
    }

    #[test]
    fn current_versions_are_told_from_all_else() {
        let mut all = write_plan(&sample());
        assert!(read_current(&all).is_empty());
        all.insert(current_version(&"kubelet".parse().unwrap()), "1.37.1".into());
        assert_eq!(read_current(&all), annotations(&[("kubelet", "1.37.1")]));
    }

    #[test]
    fn keys_belong_to_one_writer() {
        for key in AGENTS_KEYS.into_iter().chain(["alpha.kubelet.caos.ch/current-version"]) {
            assert!(is_agents(key), "{key}");
        }
        for key in OTHERS_KEYS.into_iter().chain(["alpha.kubelet.caos.ch/desired-version", "a/b"]) {
            assert!(!is_agents(key), "{key}");
        }
    }

    proptest! {
        /// Whatever stands there: no panic, a short error, and no permit out of thin air.
        #[test]
        fn any_annotations_are_survived(
            pairs in prop::collection::btree_map("alpha\\.[a-z.]{0,8}\\.caos\\.ch/(desired-version|x)|[a-z/.]{0,9}", ".{0,300}", 0..8),
            permit in ".{0,6}", hash in ".{0,14}",
        ) {
            let mut all = pairs;
            all.insert(CHANGES_ALLOWED.into(), permit.clone());
            all.insert(PLAN.into(), hash);
            match read_request(&all) {
                Ok(request) => prop_assert_eq!(request.permit, permit == "true"),
                Err(error) => prop_assert!(error.to_string().len() < 2000),
            }
        }
    }
}
