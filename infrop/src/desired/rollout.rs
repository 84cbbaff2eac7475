//! The document's part about rollouts: how nodes are taken to other versions.

use std::{borrow::Cow, collections::BTreeMap, fmt, path::PathBuf, str::FromStr};

use common::{KubernetesVersion, disruption::Disruption, software::SoftwareName};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::names::{CheckName, Count};

/// How nodes are taken to other versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Rollout {
    /// How many workers of a group may be away at once, for whatever reason: a number, or a share such as 25%.
    pub max_unavailable: Amount,
    /// How many workers of a group go first; the others wait until these are through.
    pub canary: Count,
    /// How long a node has to be well, in seconds, before the next one goes.
    #[schemars(range(max = 86400))]
    pub soak_seconds: u32,
    /// After so many failed nodes no other is begun.
    #[schemars(range(min = 1))]
    pub max_failed: Count,
    /// How long a node may be under way without a sign, in minutes, before it counts as failed.
    #[schemars(range(min = 1, max = 1440))]
    pub patience_minutes: u16,
    /// The label of Nodes that tells zones apart: nodes of two zones are never away at once.
    #[schemars(extend("format" = "label-key"))]
    pub zone_label: String,
    /// When nodes may be begun; at any time if there are none. A node that was begun is brought to its end.
    pub windows: Vec<MaintenanceWindow>,
    /// How pods are made to go.
    pub drain: Drain,
    /// What changing a software does to pods, where you know better: `containerd: restart`.
    #[schemars(extend("propertyNames" = { "format": "software-name" }))]
    pub disruption: BTreeMap<SoftwareName, Disruption>,
    /// Kubernetes versions on the way to that of `software`, for it goes one minor version at a time.
    pub kubernetes_steps: Vec<KubernetesVersion>,
    /// What is checked on a node after its soak; it is given back, and the next one goes, when all of it is well.
    pub checks: Vec<Check>,
    /// Whether load balancers outside of the cluster leave out nodes that are drained, by the label
    /// `node.kubernetes.io/exclude-from-external-load-balancers`.
    pub exclude_from_load_balancers: bool,
    /// Whether pods prefer workers that do not wait for their turn, by a taint `PreferNoSchedule` on those that do.
    pub prefer_ready: bool,
}

/// How nodes of one group are taken to other versions, where it is not as for all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct GroupRollout {
    /// How many may be away at once, for whatever reason: a number, or a share such as 25%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<Amount>,
    /// How many go first; the others wait until these are through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Count>,
    /// They begin when all groups of a lower order are through; those of the same go side by side.
    #[schemars(range(max = 1000))]
    pub order: u16,
    /// After so many failed nodes of the group no other of it is begun. What `rollout` says for all holds beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_failed: Option<Count>,
    /// How long a node has to be well, in seconds, before the next one goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 86400))]
    pub soak_seconds: Option<u32>,
    /// When nodes may be begun, instead of when all may; at any time if the list is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<MaintenanceWindow>>,
    /// How pods are made to go, as a whole instead of what `rollout` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// What changing a software does to pods, beside and before what `rollout` says.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("propertyNames" = { "format": "software-name" }))]
    pub disruption: BTreeMap<SoftwareName, Disruption>,
    /// What is checked on a node after its soak, instead of what is checked on all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<Vec<Check>>,
}

/// How control planes are taken to other versions, where it is not as for all. They go first and one at a time in any case,
/// so how many of them go is no field here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct ControlPlaneRollout {
    /// How long a node has to be well, in seconds, before the next one goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 86400))]
    pub soak_seconds: Option<u32>,
    /// When nodes may be begun, instead of when all may; at any time if the list is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<MaintenanceWindow>>,
    /// How pods are made to go, as a whole instead of what `rollout` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// What changing a software does to pods, beside and before what `rollout` says.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("propertyNames" = { "format": "software-name" }))]
    pub disruption: BTreeMap<SoftwareName, Disruption>,
    /// What is checked on a node after its soak, instead of what is checked on all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<Vec<Check>>,
}

/// Something that a site checks on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Check {
    /// Its name; no other check of the list has it.
    pub name: CheckName,
    /// What is done.
    #[serde(flatten)]
    pub probe: Probe,
    /// How long it may take, in seconds.
    #[serde(default = "Check::default_timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
}

impl Check {
    /// How long a check may take if nobody says anything else.
    pub fn default_timeout_seconds() -> u32 {
        60
    }
}

/// What a check does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Probe {
    /// A program and its arguments, run where infrop runs, without a shell: `[./smoke.sh, --fast]`.
    Command(Vec<String>),
    /// A file with a Job, relative to the document, that is run on the node.
    #[schemars(extend("format" = "path"))]
    Job(PathBuf),
}

/// Hours of some days of the week.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct MaintenanceWindow {
    /// The days on which it opens; every day if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Day>,
    /// When it opens: `22:00`.
    #[schemars(extend("format" = "time-of-day"))]
    pub start: String,
    /// For how many hours.
    #[schemars(range(min = 1, max = 168))]
    pub hours: u16,
    /// Whose clock: `Europe/Zurich`.
    #[serde(default = "MaintenanceWindow::default_time_zone")]
    #[schemars(extend("format" = "time-zone"))]
    pub time_zone: String,
}

impl MaintenanceWindow {
    fn default_time_zone() -> String {
        "UTC".to_owned()
    }
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "a day says it all")]
pub enum Day {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// How pods are made to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Drain {
    /// How long budgets may keep pods on a node, in seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: u32,
    /// What becomes of a node whose pods did not go in time.
    pub at_timeout: AtTimeout,
    /// Whether pods go that no controller makes anew.
    pub unmanaged: bool,
}

/// What becomes of a node whose pods did not go in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AtTimeout {
    /// It is waited for on.
    Wait,
    /// It is given back to pods, named, and left as it is.
    Skip,
    /// Its pods are deleted against their budgets.
    Delete,
}

/// A number of nodes, or a share of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawAmount", into = "RawAmount")]
pub enum Amount {
    /// So many.
    Nodes(u16),
    /// So many of a hundred.
    Percent(u8),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum RawAmount {
    Number(u16),
    Text(String),
}

/// A text that is no amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an amount is a number from 1 on, or a share from 1% to 100%")]
pub struct AmountError;

impl Amount {
    /// How many of `all` that is. Shares are rounded down, but never to nothing.
    pub fn of(self, all: usize) -> usize {
        match self {
            Self::Nodes(nodes) => nodes.into(),
            Self::Percent(percent) => (all * usize::from(percent) / 100).max(1),
        }
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        let amount = match text.strip_suffix('%') {
            Some(share) => Self::Percent(share.parse().map_err(|_| AmountError)?),
            None => Self::Nodes(text.parse().map_err(|_| AmountError)?),
        };
        let good = match amount {
            Self::Nodes(nodes) => nodes > 0,
            // Without signs and leading zeros, as the pattern has it.
            Self::Percent(percent) => (1..=100).contains(&percent) && text == format!("{percent}%"),
        };
        if good { Ok(amount) } else { Err(AmountError) }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(nodes) => write!(f, "{nodes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl TryFrom<RawAmount> for Amount {
    type Error = AmountError;

    fn try_from(raw: RawAmount) -> Result<Self, AmountError> {
        match raw {
            RawAmount::Number(nodes) => nodes.to_string().parse(),
            RawAmount::Text(text) => text.parse(),
        }
    }
}

impl From<Amount> for RawAmount {
    fn from(amount: Amount) -> Self {
        match amount {
            Amount::Nodes(nodes) => Self::Number(nodes),
            Amount::Percent(_) => Self::Text(amount.to_string()),
        }
    }
}

impl JsonSchema for Amount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["integer", "string"], "minimum": 1, "maximum": u16::MAX, "format": "amount" })
    }
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            max_unavailable: Amount::Nodes(1),
            canary: Count(0),
            soak_seconds: 10,
            max_failed: Count(1),
            patience_minutes: 30,
            zone_label: "topology.kubernetes.io/zone".to_owned(),
            windows: Vec::new(),
            drain: Drain::default(),
            disruption: BTreeMap::new(),
            kubernetes_steps: Vec::new(),
            checks: Vec::new(),
            exclude_from_load_balancers: false,
            prefer_ready: false,
        }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self { timeout_seconds: 600, at_timeout: AtTimeout::Skip, unmanaged: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        for (text, all, expected) in [
            ("1", 10, Some(1)),
            ("3", 2, Some(3)),
            ("25%", 10, Some(2)),
            ("1%", 10, Some(1)),
            ("100%", 7, Some(7)),
            ("0", 10, None),
            ("0%", 10, None),
            ("101%", 10, None),
            ("+5%", 10, None),
            ("05%", 10, None),
            ("-1", 10, None),
            ("%", 10, None),
            ("a", 10, None),
        ] {
            assert_eq!(text.parse::<Amount>().ok().map(|amount| amount.of(all)), expected, "{text}");
        }
    }
}
