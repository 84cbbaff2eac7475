//! Delay without help from the kernel: small kernels lack netem.
//!
//! ```text
//! host ── vb-x ── bridge bd-x ── tap di-x ── this process, waiting ── tap do-x ── the lab's bridge
//! ```

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use nix::sched::{CloneFlags, setns};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};
use tun_rs::{AsyncDevice, DeviceBuilder, Layer};

use super::in_namespace;

/// The lab's bridge.
const BRIDGE: &str = "br0";

/// The largest frame a card may hand us, segmentation offload included.
const FRAME: usize = 1 << 16;

/// A host whose packets take longer; on time again when this is dropped.
#[derive(Debug)]
pub struct Delay {
    namespace: PathBuf,
    port: String,
    relays: [JoinHandle<()>; 4],
}

/// The card at the lab's bridge through which a delayed host's packets pass.
pub(super) fn outer_port(port: &str) -> String {
    port.replacen("vb-", "do-", 1)
}

impl Delay {
    pub(super) async fn start(namespace: PathBuf, port: String, each_way: Duration) -> anyhow::Result<Self> {
        let (inner, outer) = (port.replacen("vb-", "di-", 1), outer_port(&port));
        let bridge = port.replacen("vb-", "bd-", 1);
        let devices = [open(&namespace, &inner)?, open(&namespace, &outer)?].map(Arc::new);
        for line in [
            ["link", "add", &bridge, "type", "bridge"].as_slice(),
            &["link", "set", &bridge, "up"],
            &["link", "set", &inner, "master", &bridge, "up"],
            &["link", "set", &outer, "master", BRIDGE, "up"],
            &["link", "set", &port, "master", &bridge],
        ] {
            in_namespace(&namespace, "ip").args(line).run().await?;
        }
        let [inner, outer] = devices;
        let [a, b] = relay(inner.clone(), outer.clone(), each_way);
        let [c, d] = relay(outer, inner, each_way);
        Ok(Self { namespace, port, relays: [a, b, c, d] })
    }

    /// Ends the delay.
    pub async fn end(self) -> anyhow::Result<()> {
        in_namespace(&self.namespace, "ip").args(["link", "set", &self.port, "master", BRIDGE]).run().await?;
        let bridge = self.port.replacen("vb-", "bd-", 1);
        in_namespace(&self.namespace, "ip").args(["link", "delete", &bridge]).run().await?;
        Ok(())
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        // The taps close with the tasks that read them.
        for relay in &self.relays {
            relay.abort();
        }
    }
}

/// Opens a tap in the lab's network, from a thread of its own, for a namespace is the thread's.
fn open(namespace: &Path, name: &str) -> anyhow::Result<AsyncDevice> {
    let runtime = tokio::runtime::Handle::current();
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let thread = std::thread::spawn(move || {
        setns(File::open(&namespace)?, CloneFlags::CLONE_NEWNET)?;
        let _context = runtime.enter();
        let device = DeviceBuilder::new().name(&name).layer(Layer::L2).build_async();
        device.with_context(|| format!("cannot open the tap {name}"))
    });
    thread.join().map_err(|_| anyhow!("the thread that opens a tap panicked"))?
}

/// Carries frames one way, each after its time, in order.
fn relay(from: Arc<AsyncDevice>, to: Arc<AsyncDevice>, delay: Duration) -> [JoinHandle<()>; 2] {
    let (sender, mut queue) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; FRAME];
        while let Ok(length) = from.recv(&mut buffer).await {
            let frame = buffer.get(..length).unwrap_or_default().to_vec();
            if sender.send((Instant::now() + delay, frame)).is_err() {
                break;
            }
        }
    });
    let writer = tokio::spawn(async move {
        while let Some((due, frame)) = queue.recv().await {
            tokio::time::sleep_until(due).await;
            // A frame that cannot be sent is lost, as on a real network.
            let _ = to.send(&frame).await;
        }
    });
    [reader, writer]
}
