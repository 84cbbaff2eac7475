//! Faults on the network of a lab: cuts, loss, delay. What was broken is healed when the lab ends.

mod delay;

use std::{fmt::Write as _, path::PathBuf, sync::Mutex};

use infrop::provider::lab::{HostName, Lab};
use program::Program;

pub use self::delay::Delay;

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    /// A host.
    Host(HostName),
    /// This computer: where ssh and the forwarded API port come from.
    Outside,
}

impl Party {
    /// A host by name.
    pub fn host(name: &str) -> anyhow::Result<Self> {
        Ok(Self::Host(name.parse()?))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    Cut(Party, Party),
    Loss(HostName, u8),
}

/// The faults of a lab.
#[derive(Debug)]
pub struct Faults<'a> {
    lab: &'a Lab,
    namespace: PathBuf,
    active: Mutex<Vec<Fault>>,
}

impl<'a> Faults<'a> {
    /// A lab without faults.
    pub async fn new(lab: &'a Lab) -> anyhow::Result<Self> {
        Ok(Self { lab, namespace: lab.network_namespace().await?, active: Mutex::new(Vec::new()) })
    }

    /// Lets nothing through between two parties.
    pub async fn cut(&self, one: Party, two: Party) -> anyhow::Result<()> {
        self.change(|faults| faults.push(Fault::Cut(one, two))).await
    }

    /// Lets everything through again between two parties.
    pub async fn heal(&self, one: &Party, two: &Party) -> anyhow::Result<()> {
        self.change(|faults| {
            faults.retain(|fault| match fault {
                Fault::Cut(a, b) => !((a == one && b == two) || (a == two && b == one)),
                Fault::Loss(..) => true,
            });
        })
        .await
    }

    /// Loses this many of a hundred packets from and to a host; 0 loses none.
    pub async fn lose(&self, host: &HostName, percent: u8) -> anyhow::Result<()> {
        self.change(|faults| {
            faults.retain(|fault| !matches!(fault, Fault::Loss(known, _) if known == host));
            if percent > 0 {
                faults.push(Fault::Loss(host.clone(), percent));
            }
        })
        .await
    }

    /// Delays everything from and to a host, each way, until the value is dropped. A reboot of the host ends
    /// the delay, too: it gets a new network card.
    pub async fn delay(&self, host: &HostName, each_way: std::time::Duration) -> anyhow::Result<Delay> {
        Delay::start(self.namespace.clone(), self.lab.bridge_port(host)?, each_way).await
    }

    async fn change(&self, change: impl FnOnce(&mut Vec<Fault>)) -> anyhow::Result<()> {
        let rules = {
            let mut faults = self.active.lock().map_err(|_| anyhow::anyhow!("a test panicked"))?;
            change(&mut faults);
            self.rules(&faults)?
        };
        in_namespace(&self.namespace, "nft").args(["-f", "-"]).stdin(rules).run().await?;
        Ok(())
    }

    /// The whole rule set; nft replaces the old one by it in one step.
    fn rules(&self, faults: &[Fault]) -> anyhow::Result<String> {
        let (mut forward, mut input, mut output) = (String::new(), String::new(), String::new());
        for fault in faults {
            match fault {
                Fault::Cut(Party::Outside, Party::Outside) => {
                    anyhow::bail!("this computer cannot be cut from itself")
                }
                Fault::Cut(Party::Host(one), Party::Host(two)) => {
                    let (one, two) = (self.ports(one)?, self.ports(two)?);
                    let _ = writeln!(
                        forward,
                        "iifname {one} oifname {two} drop\niifname {two} oifname {one} drop"
                    );
                }
                Fault::Cut(Party::Host(host), Party::Outside)
                | Fault::Cut(Party::Outside, Party::Host(host)) => {
                    let ports = self.ports(host)?;
                    let _ = writeln!(input, "iifname {ports} drop");
                    let _ = writeln!(output, "oifname {ports} drop");
                }
                Fault::Loss(host, percent) => {
                    let ports = self.ports(host)?;
                    let chance = format!("numgen random mod 100 < {percent} drop");
                    let _ = writeln!(forward, "iifname {ports} {chance}\noifname {ports} {chance}");
                    let _ = writeln!(input, "iifname {ports} {chance}");
                    let _ = writeln!(output, "oifname {ports} {chance}");
                }
            }
        }
        let chain = |name: &str, rules: &str| {
            format!("chain {name} {{ type filter hook {name} priority 0; policy accept;\n{rules}}}\n")
        };
        Ok(format!(
            "table bridge faults {{}}\ndelete table bridge faults\ntable bridge faults {{\n{}{}{}}}\n",
            chain("forward", &forward),
            chain("input", &input),
            chain("output", &output)
        ))
    }

    /// The cards a host's packets pass, as a set: its own, or the one a delay puts in between.
    fn ports(&self, host: &HostName) -> anyhow::Result<String> {
        let port = self.lab.bridge_port(host)?;
        Ok(format!("{{ \"{port}\", \"{}\" }}", delay::outer_port(&port)))
    }
}

/// A program in the lab's network.
fn in_namespace(namespace: &std::path::Path, program: &str) -> Program {
    Program::new("nsenter").arg(format!("--net={}", namespace.display())).arg(program)
}
