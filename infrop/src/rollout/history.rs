//! How long nodes took before: a few numbers on each Node, by which `plan` says how long a rollout will take.

use std::{collections::BTreeMap, fmt};

use common::{
    annotations::HISTORY,
    disruption::Disruption,
    software::{SoftwareName, SoftwareVersion},
};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::policy::Terms;
use crate::cluster::NodeView;

/// One that took longer was left lying by a run that nobody went on with, or the number is not ours.
const LONGEST_SECONDS: u32 = 24 * 60 * 60;

/// What we write is far shorter; a longer text is not ours.
const TEXT_LIMIT: usize = 1024;

/// What kind of change a plan is: those of a kind take about as long on nodes of a group. The greater one decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Everything else.
    Other,
    /// The host restarts.
    Reboot,
    /// Kubernetes itself.
    Kubernetes,
}

impl Kind {
    /// Of what changes.
    pub(super) fn of(changes: &[(SoftwareName, SoftwareVersion)], terms: Terms<'_>) -> Self {
        let kind = |name: &SoftwareName| match name.as_str() {
            "kubeadm" | "kubelet" | "kubernetes" => Self::Kubernetes,
            _ if terms.disruption(name) == Disruption::Reboot => Self::Reboot,
            _ => Self::Other,
        };
        changes.iter().map(|(name, _)| kind(name)).max().unwrap_or(Self::Other)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Other => "other",
            Self::Reboot => "reboot",
            Self::Kubernetes => "kubernetes",
        })
    }
}

/// What a Node says of its past.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct History {
    /// The turn it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    began: Option<Began>,
    /// How long the last turn of each kind took.
    took: BTreeMap<Kind, Took>,
}

/// When a node got its permit, and what for: who withdraws it may be another run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Began {
    kind: Kind,
    at: Timestamp,
}

/// How long a turn took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Took {
    /// From the permit to its end.
    seconds: u32,
    /// How much of it the policy asked for; the next one may ask for something else.
    soak_seconds: u32,
}

impl History {
    /// Of a Node. What cannot be read is no history.
    pub(super) fn read(node: &NodeView) -> Self {
        let text = node.annotations.get(HISTORY).filter(|text| text.len() <= TEXT_LIMIT);
        let mut history: Self = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        history.took.retain(|_, took| took.seconds <= LONGEST_SECONDS && took.soak_seconds <= took.seconds);
        history
    }

    /// The node gets its permit.
    pub(super) fn begin(self, kind: Kind, now: Timestamp) -> Self {
        Self { began: Some(Began { kind, at: now }), ..self }
    }

    /// The node is given back as it should be.
    pub(super) fn end(mut self, soak: SignedDuration, now: Timestamp) -> Self {
        let Some(Began { kind, at }) = self.began.take() else { return self };
        let seconds = |duration: SignedDuration| u32::try_from(duration.as_secs()).ok();
        // A clock that went back, or another runner's: nobody knows how long it took.
        if let Some(seconds) = seconds(now.duration_since(at)).filter(|seconds| *seconds <= LONGEST_SECONDS) {
            let soak_seconds = seconds.min(self::seconds(soak));
            self.took.insert(kind, Took { seconds, soak_seconds });
        }
        self
    }

    /// The node is given back as it was, or failed: its time says nothing.
    pub(super) fn give_up(self) -> Self {
        Self { began: None, ..self }
    }

    /// What the turn under way is for.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.began.map(|began| began.kind)
    }

    /// How long the last turn of a kind took, with another soak.
    pub(super) fn seconds(&self, kind: Kind, soak: SignedDuration) -> Option<u64> {
        let Took { seconds, soak_seconds } = self.took.get(&kind)?;
        Some(u64::from(seconds - soak_seconds) + u64::from(self::seconds(soak)))
    }

    /// The annotation's value; null if there is nothing to say.
    pub(super) fn value(&self) -> Value {
        if *self == Self::default() {
            return Value::Null;
        }
        // Numbers and times can always be written.
        serde_json::to_string(self).map_or(Value::Null, Value::String)
    }
}

fn seconds(duration: SignedDuration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::tests::node;

    const SOAK: SignedDuration = SignedDuration::from_secs(10);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn read(text: &str) -> History {
        let mut node = node("w-1", false);
        node.annotations.insert(HISTORY.into(), text.into());
        History::read(&node)
    }

    fn written(history: &History) -> History {
        read(history.value().as_str().unwrap())
    }

    #[test]
    fn a_turn_is_remembered_from_its_permit_to_its_end() {
        let begun = written(&History::default().begin(Kind::Kubernetes, at(0)));
        assert_eq!(begun.kind(), Some(Kind::Kubernetes));
        let ended = written(&begun.end(SOAK, at(200)));
        assert_eq!(ended.kind(), None);
        assert_eq!(ended.seconds(Kind::Kubernetes, SOAK), Some(200));
        assert_eq!(ended.seconds(Kind::Kubernetes, SignedDuration::from_secs(60)), Some(250));
        assert_eq!(ended.seconds(Kind::Reboot, SOAK), None);
        let text = r#"{"took":{"kubernetes":{"seconds":200,"soakSeconds":10}}}"#;
        assert_eq!(ended.value(), text);
        // Another kind does not make it forget.
        let both = ended.begin(Kind::Reboot, at(300)).end(SOAK, at(390));
        assert_eq!(
            (both.seconds(Kind::Reboot, SOAK), both.seconds(Kind::Kubernetes, SOAK)),
            (Some(90), Some(200))
        );
    }

    #[test]
    fn a_turn_without_a_good_end_says_nothing() {
        let begun = History::default().begin(Kind::Other, at(0));
        assert_eq!(begun.clone().give_up().value(), Value::Null);
        assert_eq!(begun.clone().end(SOAK, at(-1)).value(), Value::Null);
        assert_eq!(begun.end(SOAK, at(i64::from(LONGEST_SECONDS) + 1)).value(), Value::Null);
        assert_eq!(History::default().end(SOAK, at(5)).value(), Value::Null);
    }

    #[test]
    fn garbage_is_no_history() {
        let long = format!(r#"{{"took":{{}},"x":"{}"}}"#, "x".repeat(TEXT_LIMIT));
        for text in [
            "",
            "null",
            "7",
            "{",
            "[]",
            r#"{"took":7}"#,
            r#"{"took":{"x":{"seconds":1,"soakSeconds":0}}}"#,
            r#"{"took":{"other":{"seconds":-1,"soakSeconds":0}}}"#,
            r#"{"took":{"other":{"seconds":1e99,"soakSeconds":0}}}"#,
            r#"{"took":{"other":{"seconds":86401,"soakSeconds":0}}}"#,
            r#"{"took":{"other":{"seconds":1,"soakSeconds":2}}}"#,
            r#"{"began":{"kind":"other","at":"yesterday"}}"#,
            &long,
        ] {
            assert_eq!(read(text), History::default(), "{text}");
        }
    }

    #[test]
    fn the_greatest_change_decides_the_kind() {
        let policy = crate::rollout::tests::policy();
        for (names, expected) in [
            (&["sysctl"][..], Kind::Other),
            (&["sysctl", "reboot"], Kind::Reboot),
            (&["kernel"], Kind::Reboot),
            (&["containerd"], Kind::Other),
            (&["kernel", "kubelet"], Kind::Kubernetes),
            (&["kubeadm", "kubectl"], Kind::Kubernetes),
            (&[], Kind::Other),
        ] {
            let changes: Vec<_> =
                names.iter().map(|name| (name.parse().unwrap(), "1".parse().unwrap())).collect();
            assert_eq!(Kind::of(&changes, policy.of_group("w")), expected, "{names:?}");
        }
    }
}
