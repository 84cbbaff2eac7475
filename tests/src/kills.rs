//! infrop killed with -9 at random moments: another run ends where the first would have.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, ResourceExt, api::ListParams};

use crate::infrastructure::{Infrastructure, lab_document};

/// A bring-up takes longer than this also on a fast machine, so that most kills hit it.
const BRING_UP: u64 = 30_000;

/// Looking takes a second, and a removal two or three.
const REMOVAL: u64 = 3_000;

/// So many of them may come too late.
const MISSES: u32 = 5;

/// Random moments that can be had again: the seed is printed, and `INFROP_TEST_SEED` gives it.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From the environment's seed, or from a new one.
    pub fn new() -> anyhow::Result<Self> {
        let seed = match std::env::var("INFROP_TEST_SEED") {
            Ok(text) => text.parse().context("INFROP_TEST_SEED is no number")?,
            Err(_) => u64::from_str_radix(&infrop::random::hex(4)?, 16)?,
        };
        eprintln!("INFROP_TEST_SEED={seed}");
        // Never zero, which would stay zero.
        Ok(Self(seed | 1 << 40))
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// How often infrop was killed in the middle of its work.
#[derive(Debug, Default, Clone, Copy)]
pub struct Kills {
    /// While a cluster came up.
    pub bring_up: u32,
    /// While a worker went.
    pub removal: u32,
}

/// Brings a cluster up, and takes a worker away again and again, and kills infrop so often in each; whatever happens, the
/// end is the same, no compute is lost or there twice, and the cluster that once was there stays.
pub async fn round(name: &str, random: &mut Random, wanted: Kills) -> anyhow::Result<Kills> {
    Infrastructure::new(name, &lab_document(name, 2))?
        .with(async |infrastructure| {
            let mut kills = Kills::default();
            let mut cluster = None;
            for _ in 0..wanted.bring_up {
                kills.bring_up += kill_after(infrastructure, random.below(BRING_UP)).await?;
                same_cluster(infrastructure, &mut cluster).await?;
            }
            infrastructure.insist(&["apply"]).await?;
            same_cluster(infrastructure, &mut cluster).await?;
            check(infrastructure, &["cp-1", "w-1", "w-2"]).await?;

            // One that comes when infrop has ended proves nothing: there is another try.
            for _ in 0..MISSES + wanted.removal {
                if kills.removal == wanted.removal {
                    break;
                }
                infrastructure.edit("pool: w, nodes: 2", "pool: w, nodes: 1")?;
                kills.removal += kill_after(infrastructure, random.below(REMOVAL)).await?;
                infrastructure.insist(&["apply", "--yes"]).await?;
                same_cluster(infrastructure, &mut cluster).await?;
                check(infrastructure, &["cp-1", "w-1"]).await?;
                infrastructure.edit("pool: w, nodes: 1", "pool: w, nodes: 2")?;
                infrastructure.insist(&["apply"]).await?;
            }
            Ok(kills)
        })
        .await
}

/// Kills an apply after a while; gives 1 if it was still at work.
async fn kill_after(infrastructure: &Infrastructure, milliseconds: u64) -> anyhow::Result<u32> {
    let mut child = infrastructure.start(&["apply", "--yes"])?;
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    let at_work = child.try_wait()?.is_none();
    eprintln!("killed after {milliseconds} ms{}", if at_work { "" } else { ", when it had ended" });
    child.kill().await.context("cannot kill infrop")?;
    Ok(u32::from(at_work))
}

/// Once there is a cluster it stays the same one.
async fn same_cluster(infrastructure: &Infrastructure, known: &mut Option<String>) -> anyhow::Result<()> {
    let Ok(client) = infrastructure.client().await else {
        ensure!(known.is_none(), "the cluster is gone");
        return Ok(());
    };
    let namespace = Api::<Namespace>::all(client).get("kube-system").await?;
    let now = namespace.uid().context("a namespace without an id")?;
    match known {
        Some(before) => ensure!(*before == now, "it is another cluster"),
        None => *known = Some(now),
    }
    Ok(())
}

/// Just these hosts and Nodes are there.
async fn check(infrastructure: &Infrastructure, names: &[&str]) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(infrastructure.client().await?).list(&ListParams::default()).await?;
    let mut nodes: Vec<String> = nodes.iter().map(ResourceExt::name_any).collect();
    nodes.sort();
    ensure!(nodes == names, "{nodes:?}");
    let mut hosts: Vec<String> =
        infrastructure.lab()?.definition()?.hosts.iter().map(|host| host.name.to_string()).collect();
    hosts.sort();
    ensure!(hosts == names, "{hosts:?}");
    let again = infrastructure.insist(&["apply"]).await?;
    ensure!(again.contains("Nothing to do"), "{again}");
    Ok(())
}
