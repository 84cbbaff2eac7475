//! etcd, asked through its own pods: how its voters are, and a copy of its data.

use std::collections::BTreeMap;

use common::metadata::NodeName;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api,
    api::{AttachParams, ListParams},
};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use super::{error::Error, saved::Occasion, snapshot::Etcd};
use crate::cluster::NodeView;

const NAMESPACE: &str = "kube-system";

/// kubeadm's label of its etcd pods.
const LABELS: &str = "component=etcd,tier=control-plane";

/// Where kubeadm keeps how it made the cluster.
const CONFIGURATION: &str = "kubeadm-config";

/// A saved copy is written at the disk's speed; a member that does not answer is waited for by etcdctl itself.
const LIMIT: std::time::Duration = std::time::Duration::from_mins(2);

/// etcdctl in an etcd pod of kubeadm.
const ETCDCTL: [&str; 5] = [
    "etcdctl",
    "--endpoints=https://127.0.0.1:2379",
    "--cacert=/etc/kubernetes/pki/etcd/ca.crt",
    "--cert=/etc/kubernetes/pki/etcd/server.crt",
    "--key=/etc/kubernetes/pki/etcd/server.key",
];

/// How etcd is.
pub async fn look(client: &kube::Client) -> Etcd {
    match seen(client).await {
        Ok(etcd) => etcd,
        Err(error) => Etcd::Silent(format!("{:#}", anyhow::Error::from(error))),
    }
}

/// Without a pod of it, the cluster has to say that its etcd is elsewhere: pods may be missing for worse reasons.
async fn seen(client: &kube::Client) -> Result<Etcd, Error> {
    match voters(client).await {
        Err(Error::Etcd(_)) if is_external(client).await? => Ok(Etcd::External),
        voters => voters.map(Etcd::Voters),
    }
}

async fn is_external(client: &kube::Client) -> Result<bool, Error> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let map = api.get_opt(CONFIGURATION).await;
    let map = map.map_err(|error| Error::api(format!("read the ConfigMap {CONFIGURATION}"), error))?;
    Ok(map.and_then(|map| map.data?.remove("ClusterConfiguration")).is_some_and(|text| names_external(&text)))
}

/// Whether kubeadm's configuration of a cluster has an etcd that is not kubeadm's.
fn names_external(configuration: &str) -> bool {
    let configuration: Result<serde_yaml::Value, _> = serde_yaml::from_str(configuration);
    configuration.is_ok_and(|configuration| {
        configuration
            .get("etcd")
            .and_then(|etcd| etcd.get("external"))
            .is_some_and(|external| !external.is_null())
    })
}

/// How long a member is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// It comes back.
    ForNow,
    /// It is taken out.
    ForGood,
}

/// Why etcd could not decide without the member on a node, if it leaves so.
pub fn missed(etcd: &Etcd, name: &NodeName, leaves: Leaves) -> Option<String> {
    let voters = match etcd {
        Etcd::Unknown => return Some("nobody has looked at etcd".to_owned()),
        Etcd::Silent(why) => return Some(format!("etcd cannot be asked: {why}")),
        Etcd::External => return None,
        Etcd::Voters(voters) => voters,
    };
    let others = || voters.iter().filter(|(voter, _)| voter.as_str() != name.as_str());
    let (stay, well) = (others().count(), others().filter(|(_, well)| **well).count());
    let needed = match leaves {
        // One that is not well is missed already, and one or two never have one to spare.
        Leaves::ForNow if voters.len() <= 2 || voters.get(name.as_str()) != Some(&true) => return None,
        Leaves::ForNow => voters.len() / 2 + 1,
        Leaves::ForGood => stay / 2 + 1,
    };
    (well < needed).then(|| {
        format!(
            "without {name} {well} of {stay} members of etcd would be well, and it needs {needed} to decide"
        )
    })
}

async fn voters(client: &kube::Client) -> Result<BTreeMap<String, bool>, Error> {
    let api = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let pods = api
        .list(&ListParams::default().labels(LABELS))
        .await
        .map_err(|error| Error::api("list etcd's pods", error))?;
    let mut trouble = Error::Etcd("no pod of it is there".to_owned());
    for pod in &pods {
        let ready = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        if !ready.clone().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
            continue;
        }
        let Some(name) = &pod.metadata.name else { continue };
        match ask(&api, name).await {
            Ok(voters) => return Ok(voters),
            Err(error) => trouble = error,
        }
    }
    Err(trouble)
}

/// All voters, as the member in a pod sees them.
async fn ask(api: &Api<Pod>, pod: &str) -> Result<BTreeMap<String, bool>, Error> {
    let members = execute(api, pod, &["member", "list", "--write-out=json"]).await?;
    // It fails if one of them is not well, and says which all the same.
    let health = execute(api, pod, &["endpoint", "health", "--cluster", "--write-out=json"]).await;
    let health = match health {
        Ok(text) | Err(Error::Etcd(text)) => text,
        Err(error) => return Err(error),
    };
    parse(&members, &health).ok_or_else(|| Error::Etcd(format!("etcdctl in {pod} answered something else")))
}

fn parse(members: &str, health: &str) -> Option<BTreeMap<String, bool>> {
    let members: Value = serde_json::from_str(members).ok()?;
    // Of two streams, the one with the list.
    let health = health.lines().find_map(|line| serde_json::from_str::<Vec<Value>>(line).ok())?;
    let is_well = |member: &Value| {
        let urls = member.get("clientURLs").and_then(Value::as_array).into_iter().flatten();
        urls.filter_map(Value::as_str).any(|url| {
            health.iter().any(|one| {
                one.get("endpoint").and_then(Value::as_str) == Some(url)
                    && one.get("health").and_then(Value::as_bool) == Some(true)
            })
        })
    };
    let mut voters = BTreeMap::new();
    for member in members.get("members")?.as_array()? {
        if member.get("isLearner").and_then(Value::as_bool) == Some(true) {
            continue;
        }
        // One that was added and never came has no name: it counts, and is not well.
        let name = member.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.map_or_else(|| format!("member {}", voters.len()), str::to_owned);
        voters.insert(name, is_well(member));
    }
    Some(voters)
}

/// Saves etcd's data in its directory on a control plane, and gives the file's name there.
pub async fn save(client: &kube::Client, node: &NodeView, occasion: &Occasion) -> Result<String, Error> {
    let api = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let file = file(occasion);
    execute(&api, &pod_on(&node.name), &["snapshot", "save", &file]).await?;
    Ok(file)
}

/// One per version, and one for all other changes: it is written again by a rollout that begins again, and they do not pile
/// up.
fn file(occasion: &Occasion) -> String {
    format!("/var/lib/etcd/infrop-before-{occasion}.db")
}

fn pod_on(node: &NodeName) -> String {
    format!("etcd-{node}")
}

/// Runs etcdctl; gives what it says, or as an error all it says if it fails.
async fn execute(api: &Api<Pod>, pod: &str, words: &[&str]) -> Result<String, Error> {
    let command = ETCDCTL.iter().chain(words).copied();
    let work = async {
        let parameters = AttachParams::default().stdout(true).stderr(true).stdin(false);
        let mut process = api
            .exec(pod, command, &parameters)
            .await
            .map_err(|error| Error::api(format!("run etcdctl in {pod}"), error))?;
        let (mut said, mut complained) = (String::new(), String::new());
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let status = process.take_status();
        let read = async {
            tokio::try_join!(
                async {
                    if let Some(mut pipe) = stdout { pipe.read_to_string(&mut said).await } else { Ok(0) }
                },
                async {
                    if let Some(mut pipe) = stderr {
                        pipe.read_to_string(&mut complained).await
                    } else {
                        Ok(0)
                    }
                },
            )
        };
        read.await.map_err(|error| Error::Etcd(format!("etcdctl in {pod}: {error}")))?;
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        if status.and_then(|status| status.status).as_deref() == Some("Success") {
            Ok(said)
        } else {
            Err(Error::Etcd(format!("{said}{complained}")))
        }
    };
    tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| {
        Err(Error::Etcd(format!("etcdctl in {pod} did not end within {} s", LIMIT.as_secs())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_member_goes_that_etcd_needs() {
        use Leaves::{ForGood, ForNow};
        // Whether each member is well; the first is the one in question.
        for (voters, now, good) in [
            (&[true][..], true, false),
            (&[true, true], true, true),
            (&[true, false], true, false),
            (&[false, true], true, true),
            (&[true, true, true], true, true),
            (&[true, true, false], false, false),
            (&[false, true, true], true, true),
            (&[false, true, false], true, false),
            (&[true, true, true, true, false], true, true),
            (&[true, true, true, false, false], false, false),
        ] {
            let voters = voters.iter().enumerate().map(|(number, well)| (format!("cp-{number}"), *well));
            let etcd = Etcd::Voters(voters.collect());
            let may = |leaves| missed(&etcd, &"cp-0".parse().unwrap(), leaves).is_none();
            assert_eq!((may(ForNow), may(ForGood)), (now, good), "{etcd:?}");
        }
        // One that was taken out already.
        let two = |well| Etcd::Voters([("cp-1".to_owned(), true), ("cp-2".to_owned(), well)].into());
        let name = "cp-0".parse().unwrap();
        assert_eq!(missed(&two(true), &name, ForGood), None);
        assert!(missed(&two(false), &name, ForGood).is_some());
        for leaves in [ForNow, ForGood] {
            let why = missed(&Etcd::Silent("no pod of it is there".to_owned()), &name, leaves);
            assert_eq!(why.as_deref(), Some("etcd cannot be asked: no pod of it is there"));
        }
    }

    #[test]
    fn a_cluster_says_whether_its_etcd_is_kubeadms() {
        for (configuration, external) in [
            ("etcd:\n  external:\n    endpoints: [https://10.0.0.1:2379]\n", true),
            ("etcd:\n  local:\n    dataDir: /var/lib/etcd\n", false),
            ("etcd:\n  external: null\n", false),
            ("etcd: 1", false),
            ("", false),
            ("a: [", false),
        ] {
            assert_eq!(names_external(configuration), external, "{configuration}");
        }
        assert_eq!(missed(&Etcd::External, &"cp-0".parse().unwrap(), Leaves::ForGood), None);
    }

    #[test]
    fn voters_and_their_health_are_read() {
        let members = r#"{"header":{},"members":[
            {"ID":1,"name":"cp-1","peerURLs":[],"clientURLs":["https://10.88.0.11:2379"]},
            {"ID":2,"name":"cp-2","peerURLs":[],"clientURLs":["https://10.88.0.12:2379"]},
            {"ID":3,"name":"","peerURLs":["https://10.88.0.13:2380"]},
            {"ID":4,"name":"cp-4","clientURLs":["https://10.88.0.14:2379"],"isLearner":true}]}"#;
        let health = "warning: something\n[{\"endpoint\":\"https://10.88.0.11:2379\",\"health\":true,\"took\":\"5ms\"},\
            {\"endpoint\":\"https://10.88.0.12:2379\",\"health\":false,\"error\":\"x\"}]\nError: unhealthy cluster\n";
        let voters = parse(members, health).unwrap();
        let expected = [("cp-1", true), ("cp-2", false), ("member 2", false)];
        assert_eq!(voters, expected.map(|(name, well)| (name.to_owned(), well)).into());
        assert_eq!(parse("{}", health), None);
        assert_eq!(parse(members, "no"), None);
    }
}
