//! `infrop lab`: hosts on this computer.

use std::{
    convert::Infallible, ffi::OsString, net::Ipv4Addr, os::unix::process::CommandExt, path::PathBuf,
    process::Command, str::FromStr,
};

use anyhow::Context;
use clap::{Args, Subcommand};
use common::KubernetesVersion;
use images::{
    kubernetes::{self, Request, Wish},
    node, site,
};
use serde::Serialize;

use super::{
    Shared,
    output::{Output, print_json, table},
};
use crate::provider::lab::{
    self, BUNDLES_ON_HOSTS, Definition, HostName, Lab, LabName, Lifetime, Plan, Power, SITE, Status, Store,
    Summary,
};

/// System-wide, because machines and networks are.
const DEFAULT_STORE: &str = "/var/lib/infrop/labs";

const LAB_HELP: &str = "\
Hosts are systemd-nspawn machines with Debian, systemd and sshd, in a network of their own that has no way out. They \
outlive this command; `infrop lab destroy` ends them.

Example:
  infrop lab create demo --hosts cp1,w1,w2 --bundle 1.37.1
  infrop lab ssh demo cp1
  infrop lab power demo w1 cut
  infrop lab add demo w3
  infrop lab destroy demo";

#[derive(Debug, Args)]
#[command(after_help = LAB_HELP)]
pub(super) struct LabArguments {
    /// Where labs are kept.
    #[arg(long, global = true, env = "INFROP_LAB_DIR", value_name = "DIR", default_value = DEFAULT_STORE)]
    lab_dir: PathBuf,

    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Make a lab and boot its hosts.
    Create {
        /// The lab's name.
        name: LabName,
        /// How many hosts (host1, host2, ..., or 0), or their names with commas between.
        #[arg(long, default_value = "3", value_name = "NUMBER|NAMES")]
        hosts: Hosts,
        /// A Kubernetes version whose bundle hosts see under /opt/infrop/bundles; may be repeated. Beside it they
        /// see a repository `site` with keepalived and haproxy.
        #[arg(long, value_name = "VERSION")]
        bundle: Vec<KubernetesVersion>,
    },
    /// List the labs there are.
    List {
        /// The form of the answer.
        #[arg(short, long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Show the hosts of a lab and how to reach them.
    Status {
        /// The lab's name.
        name: LabName,
        /// The form of the answer.
        #[arg(short, long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Boot a lab again that does not run, for example since this computer was restarted.
    Start {
        /// The lab's name.
        name: LabName,
    },
    /// Make one more host and boot it; one that is there is switched on.
    Add {
        /// The lab's name.
        name: LabName,
        /// The host.
        host: HostName,
    },
    /// Cut the power of a host and remove all it has.
    Remove {
        /// The lab's name.
        name: LabName,
        /// The host.
        host: HostName,
    },
    /// Switch a host on or off, or cut its power.
    Power {
        /// The lab's name.
        name: LabName,
        /// The host.
        host: HostName,
        /// What to do.
        power: Power,
    },
    /// Open a shell on a host or run a command there.
    Ssh {
        /// The lab's name.
        name: LabName,
        /// The host.
        host: HostName,
        /// The command and its arguments.
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Print what the console of a host showed.
    Console {
        /// The lab's name.
        name: LabName,
        /// The host.
        host: HostName,
    },
    /// End a lab and remove all its files.
    Destroy {
        /// The lab's name.
        name: LabName,
    },
    /// Keep a lab (started by `create` and `start`).
    #[command(hide = true)]
    Supervise {
        #[arg(long)]
        directory: PathBuf,
    },
    /// Run the hosts of a lab (started by `supervise`).
    #[command(hide = true)]
    Keep {
        #[arg(long)]
        directory: PathBuf,
    },
    /// Become a host (started by `keep`).
    #[command(hide = true)]
    Boot {
        #[arg(long)]
        cgroup: Vec<PathBuf>,
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
    /// Carry ssh into a lab (started by ssh).
    #[command(hide = true)]
    Connect {
        #[arg(long)]
        directory: PathBuf,
        address: Ipv4Addr,
        port: u16,
    },
}

/// A number of hosts, or their names.
#[derive(Debug, Clone)]
struct Hosts(Vec<HostName>);

impl FromStr for Hosts {
    type Err = lab::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = match text.parse::<u16>() {
            Ok(number) => (1..=number).map(|n| format!("host{n}").parse()).collect::<Result<_, _>>()?,
            Err(_) => text.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>()?,
        };
        Ok(Self(names))
    }
}

/// Runs the commands that are only started by infrop itself: they change what the process is, so they come
/// before it has threads, and a signal ends them without a word.
pub(super) fn run_internal(arguments: &LabArguments) -> Option<anyhow::Result<()>> {
    let result = match &arguments.command {
        LabCommand::Supervise { directory } => lab::supervise(directory),
        LabCommand::Keep { directory } => lab::keep(directory),
        LabCommand::Boot { cgroup, arguments } => {
            lab::boot(cgroup, arguments).map(|never: Infallible| match never {})
        }
        LabCommand::Connect { directory, address, port } => lab::connect(directory, *address, *port),
        _ => return None,
    };
    Some(result.map_err(Into::into))
}

pub(super) async fn run(arguments: LabArguments, shared: &Shared) -> anyhow::Result<()> {
    let LabArguments { lab_dir, command } = arguments;
    let store = Store::new(lab_dir);
    match command {
        LabCommand::Create { name, hosts, bundle } => create(&store, name, hosts, &bundle, shared).await?,
        LabCommand::List { output } => list(&store, output)?,
        LabCommand::Status { name, output } => {
            let lab = Lab::open(&store, &name)?;
            let status = lab.status().await?;
            match output {
                Output::Json => print_json(&status)?,
                Output::Text => println!("{}", describe(&lab, &status)),
            }
        }
        LabCommand::Start { name } => {
            lab::raise_limits(&shared.steps);
            let start = async {
                let lab = Lab::start(&store, &name).await?;
                for host in lab.definition()?.hosts {
                    lab.wait_for_host(&host.name).await?;
                }
                Ok::<_, lab::Error>(lab)
            };
            let lab = shared.steps.step(format_args!("boot the lab {name}"), start).await?;
            println!("{}", describe(&lab, &lab.status().await?));
        }
        LabCommand::Add { name, host } => {
            let lab = Lab::open(&store, &name)?;
            lab.add_host(&host).await?;
            lab.wait_for_host(&host).await?;
            println!("{}", describe(&lab, &lab.status().await?));
        }
        LabCommand::Remove { name, host } => Lab::open(&store, &name)?.remove_host(&host).await?,
        LabCommand::Power { name, host, power } => Lab::open(&store, &name)?.power(&host, power).await?,
        LabCommand::Ssh { name, host, command } => {
            let lab = Lab::open(&store, &name)?;
            lab.definition()?.host(&host)?;
            let error =
                Command::new("ssh").arg("-F").arg(lab.ssh_config()).arg(host.as_str()).args(command).exec();
            return Err(error).context("cannot start ssh");
        }
        LabCommand::Console { name, host } => {
            let lab = Lab::open(&store, &name)?;
            lab.definition()?.host(&host)?;
            let mut file = tokio::fs::File::open(lab.console(&host)).await?;
            tokio::io::copy(&mut file, &mut tokio::io::stdout()).await?;
        }
        LabCommand::Destroy { name } => Lab::destroy(&store, &name).await?,
        LabCommand::Supervise { .. }
        | LabCommand::Keep { .. }
        | LabCommand::Boot { .. }
        | LabCommand::Connect { .. } => anyhow::bail!("this command is run by `run_internal`"),
    }
    Ok(())
}

async fn create(
    store: &Store,
    name: LabName,
    hosts: Hosts,
    versions: &[KubernetesVersion],
    shared: &Shared,
) -> anyhow::Result<()> {
    // Said before minutes of building.
    if let Some(obstacle) = lab::obstacle() {
        anyhow::bail!(obstacle);
    }
    let root = node::ensure(&shared.cache, &shared.steps).await?;
    let mut offers = Vec::new();
    for version in versions {
        let request =
            Request { version: version.clone(), containerd: None, wish: Wish::default(), anew: false };
        let bundle = kubernetes::build(&shared.cache, &request, &shared.steps).await?;
        offers.push((version.to_string(), bundle.path().to_owned()));
    }
    if !offers.is_empty() {
        offers.push((SITE.to_owned(), site::ensure(&shared.cache, &shared.steps).await?));
    }
    let infrop = std::env::current_exe().context("cannot tell where this program is")?;
    let plan = Plan { name, owner: None, hosts: hosts.0, root, lifetime: Lifetime::Kept, infrop };
    let what = format!("boot {} hosts", plan.hosts.len());
    let lab = shared.steps.step(what, Lab::create(store, plan, &shared.steps)).await?;
    for (name, path) in offers {
        if let Err(error) = lab.offer(&name, &path).await {
            // All of what was asked for, or nothing.
            Lab::destroy(store, lab.name()).await?;
            return Err(error.into());
        }
    }
    println!("{}", describe(&lab, &lab.status().await?));
    Ok(())
}

fn describe(lab: &Lab, status: &Status) -> String {
    let Status { name, owner, api_port, api_address, hosts } = status;
    let rows = hosts.iter().map(|host| {
        let state = if host.running { "on" } else { "off" };
        let ssh = format!("ssh -F {} {}", lab.ssh_config().display(), host.name);
        [host.name.to_string(), host.address.to_string(), state.to_owned(), host.boots.to_string(), ssh]
    });
    let mut text = table(["HOST", "ADDRESS", "POWER", "BOOTS", "REACH IT WITH"], rows) + "\n";
    if let Some(owner) = owner {
        text += &format!("\nIt belongs to the infrastructure {owner}.");
    }
    if let Some(address) = api_address {
        text += &format!("\nA Kubernetes API on {address} answers here at https://127.0.0.1:{api_port}.");
    }
    text += &format!("\nHosts see {} at {BUNDLES_ON_HOSTS}.", lab.offered().display());
    text + &format!("\nEnd it with: infrop lab destroy {name}")
}

/// A lab as `list` shows it.
#[derive(Serialize)]
struct Row {
    name: LabName,
    owner: Option<String>,
    running: bool,
    hosts: usize,
    directory: PathBuf,
}

fn list(store: &Store, output: Output) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for name in store.list()? {
        let Summary { definition, directory, running } = store.summary(&name)?;
        let Definition { owner, hosts, .. } = definition;
        rows.push(Row { name, owner, running, hosts: hosts.len(), directory });
    }
    match output {
        Output::Json => print_json(&rows),
        Output::Text => {
            let rows = rows.into_iter().map(|row| {
                let state = if row.running { "running" } else { "stopped" };
                let Row { name, owner, hosts, directory, .. } = row;
                let owner = owner.unwrap_or_else(|| "-".into());
                let directory = directory.display().to_string();
                [name.to_string(), state.to_owned(), hosts.to_string(), owner, directory]
            });
            println!("{}", table(["LAB", "STATE", "HOSTS", "OWNER", "DIRECTORY"], rows));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_a_number_or_names() {
        let names = |text: &str| {
            text.parse::<Hosts>()
                .map(|Hosts(names)| names.iter().map(HostName::to_string).collect::<Vec<_>>())
        };
        assert_eq!(names("2").unwrap(), ["host1", "host2"]);
        assert_eq!(names("cp1, w1").unwrap(), ["cp1", "w1"]);
        assert!(names("0").unwrap().is_empty());
        for text in ["", "a,", "UPPER", "-3"] {
            assert!(names(text).is_err(), "{text}");
        }
    }
}
