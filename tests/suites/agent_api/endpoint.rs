//! What load balancers hear of a control plane whose agent is at work.

use std::{
    io::Read as _,
    net::{TcpListener, TcpStream},
    time::Duration,
};

use anyhow::{Context, ensure};
use common::state::Phase;
use tests::lab::wait_for;

use crate::fixture::{Fixture, NODE, plan};

/// Between two attempts: longer than an API server has to be ready to be led to again.
const RETRY: Duration = Duration::from_mins(2);

/// An attempt that failed is followed by the next: the API server of that host is not led to as soon as the agent rests,
/// for it may stop at once again.
pub(crate) async fn it_comes_back_to_stay() -> anyhow::Result<()> {
    let mut fixture = Fixture::empty("").await?;
    let config = fixture.server.kubeconfig("nobody", &[])?;
    let cluster = config.clusters.first().and_then(|named| named.cluster.clone()).context("no cluster")?;
    let server: http::Uri = cluster.server.context("no server")?.parse()?;
    let (host, port) = (server.host().context("no host")?, server.port_u16().context("no port")?);
    let address = TcpListener::bind((host, 0))?.local_addr()?;
    let settings = format!("node: {NODE}\nendpointAddress: {address}\nretrySeconds: {}\n", RETRY.as_secs());
    fixture.agent.write("etc/node-agent/config.yaml", &settings)?;
    fixture.create_node().await?;
    fixture.agent.join(&fixture.server, NODE)?;
    fixture.agent.start()?;
    let hear = || -> anyhow::Result<String> {
        let mut word = String::new();
        TcpStream::connect(address)?.read_to_string(&mut word)?;
        Ok(word)
    };
    wait_for(Duration::from_secs(20), "it is there", async || Ok(hear().is_ok_and(|word| word == "ready\n")))
        .await?;

    let command = format!("[kube-apiserver, --secure-port={port}]");
    let manifest = format!("spec: {{ containers: [{{ image: x, command: {command} }}] }}\n");
    fixture.agent.write("etc/kubernetes/manifests/kube-apiserver.yaml", &manifest)?;

    // There is no such package, so the attempt fails after the endpoint was left.
    fixture.permit(&plan(&[("containerd", &"99.0.0".parse()?)])?).await?;
    wait_for(Duration::from_secs(40), "the attempt failed", async || {
        Ok(fixture.state().await?.is_some_and(|state| state.phase == Phase::Retrying))
    })
    .await?;
    for _ in 0..10 {
        let word = hear()?;
        ensure!(
            word == "drain\n",
            "{word:?} while the agent rests between two attempts\n{}",
            fixture.agent.log()
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    wait_for(Duration::from_secs(40), "it is there again", async || Ok(hear()? == "ready\n"))
        .await
        .with_context(|| fixture.agent.log())?;
    let state = fixture.state().await?.context("no state")?;
    ensure!(state.phase == Phase::Retrying, "{state:?}");
    Ok(())
}
