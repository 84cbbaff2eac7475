//! etcd's members, changed through a control plane that lives: its own etcdctl, in the etcd pod there.

use std::time::Duration;

use anyhow::Context as _;
use common::metadata::NodeName;
use serde_json::Value;

use super::ssh::Remote;

const LIMIT: Duration = Duration::from_mins(1);

/// `etcdctl` in the pod on this host.
const ETCDCTL: &str = "kubectl --kubeconfig /etc/kubernetes/admin.conf --namespace kube-system exec \"etcd-$(hostname)\" -- \
    etcdctl --endpoints=https://127.0.0.1:2379 --cacert=/etc/kubernetes/pki/etcd/ca.crt \
    --cert=/etc/kubernetes/pki/etcd/server.crt --key=/etc/kubernetes/pki/etcd/server.key";

/// Takes a member out; none of that name is fine.
pub async fn remove_member(remote: &Remote, name: &NodeName) -> anyhow::Result<()> {
    let list =
        remote.run("list etcd's members", LIMIT, &format!("{ETCDCTL} member list --write-out=json")).await?;
    let list: Value = serde_json::from_str(&list).context("etcdctl answered something that is no JSON")?;
    let members = list.get("members").and_then(Value::as_array).context("etcdctl listed no members")?;
    let found =
        members.iter().find(|member| member.get("name").and_then(Value::as_str) == Some(name.as_str()));
    let Some(id) = found.and_then(|member| member.get("ID")).and_then(Value::as_u64) else { return Ok(()) };
    remote.run("take a member out of etcd", LIMIT, &format!("{ETCDCTL} member remove {id:x}")).await?;
    Ok(())
}
