//! infrop killed with -9 at random moments: another run ends where the first would have.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, ResourceExt, api::ListParams};
use tests::infrastructure::Infrastructure;

use super::document;

const NAME: &str = "kills";

/// How often it is killed while the cluster comes up; more often in `cargo xtask soak`.
const KILLS: u32 = 4;

pub(crate) async fn killed() -> anyhow::Result<()> {
    let mut random = Random::new()?;
    Infrastructure::new(NAME, &document(NAME, 2))?
        .with(async |infrastructure| {
            let mut cluster = None;
            for _ in 0..KILLS {
                kill_after(infrastructure, &["apply"], random.below(30_000)).await?;
                same_cluster(infrastructure, &mut cluster).await?;
            }
            infrastructure.insist(&["apply"]).await?;
            same_cluster(infrastructure, &mut cluster).await?;
            check(infrastructure, &["cp-1", "w-1", "w-2"]).await?;

            infrastructure.edit("pool: w, nodes: 2", "pool: w, nodes: 1")?;
            kill_after(infrastructure, &["apply", "--yes"], random.below(4_000)).await?;
            infrastructure.insist(&["apply", "--yes"]).await?;
            same_cluster(infrastructure, &mut cluster).await?;
            check(infrastructure, &["cp-1", "w-1"]).await
        })
        .await
}

async fn kill_after(
    infrastructure: &Infrastructure,
    words: &[&str],
    milliseconds: u64,
) -> anyhow::Result<()> {
    let mut child = infrastructure.start(words)?;
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    eprintln!("killed after {milliseconds} ms");
    child.kill().await.context("cannot kill infrop")
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

/// Random moments that can be had again: the seed is printed, and `INFROP_TEST_SEED` gives it.
struct Random(u64);

impl Random {
    fn new() -> anyhow::Result<Self> {
        let seed = match std::env::var("INFROP_TEST_SEED") {
            Ok(text) => text.parse().context("INFROP_TEST_SEED is no number")?,
            Err(_) => u64::from_str_radix(&infrop::random::hex(4)?, 16)?,
        };
        eprintln!("INFROP_TEST_SEED={seed}");
        // Never zero, which would stay zero.
        Ok(Self(seed | 1 << 40))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
