//! `node-agent status`: what the service does and why.

use std::{io, path::PathBuf};

use anyhow::{Context, ensure};
use hyper::{Method, StatusCode};
use serde::Serialize;
use sysinfo::System;

use super::Output;
use crate::{
    engine::JOURNAL,
    host::Host,
    journal::{Journal, Quarantine},
    socket,
    status::{Change, SoftwareStatus, Status},
};

/// What is printed as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    running: bool,
    service: Option<Status>,
    journal: Journal,
    host: Facts,
}

/// What a person asks for first when something is odd.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Facts {
    system: Option<String>,
    kernel: Option<String>,
    memory_mib: Option<u64>,
    uptime_seconds: Option<u64>,
}

impl Facts {
    fn find() -> Self {
        let memory = System::new().map(|mut system| {
            system.refresh_memory();
            system.total_memory() >> 20
        });
        Self {
            system: System::long_os_version().ok(),
            kernel: System::kernel_version().ok(),
            memory_mib: memory.ok(),
            uptime_seconds: System::uptime().ok(),
        }
    }
}

pub(super) async fn run(root: PathBuf, output: Output) -> anyhow::Result<()> {
    let host = Host::this_machine(root);
    let journal = Journal::read(&host.path(JOURNAL))?;
    let mut running = true;
    let service = match socket::ask(&host.path(socket::PATH), Method::GET, "/status").await {
        Ok((StatusCode::OK, text)) => {
            Some(serde_json::from_str(&text).context("the service answers in another form")?)
        }
        Ok((code, text)) => {
            ensure!(code == StatusCode::SERVICE_UNAVAILABLE, "the service answers {code}: {text}");
            None
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            running = false;
            None
        }
        Err(error) => return Err(error).context("cannot ask the service on its socket"),
    };
    let answer = Answer { running, service, journal, host: Facts::find() };
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
        Output::Text => print(&answer),
    }
    Ok(())
}

fn print(answer: &Answer) {
    let Answer { running, service, journal, host } = answer;
    if let Some(status) = service {
        print_status(status);
    } else {
        if *running {
            println!("the service has just started and looks at the host");
        } else {
            println!("the service does not run: systemctl status node-agent");
        }
        print_journal(journal);
    }
    let Facts { system, kernel, memory_mib, uptime_seconds } = host;
    let text = |value: Option<&String>| value.cloned().unwrap_or_else(|| "unknown".to_owned());
    println!(
        "host: {}, kernel {}, {} MiB, up {} min",
        text(system.as_ref()),
        text(kernel.as_ref()),
        memory_mib.unwrap_or_default(),
        uptime_seconds.unwrap_or_default() / 60
    );
}

fn print_status(status: &Status) {
    let Status { node, state, ready, plan_observed, last_success, software } = status;
    println!("node {node}: {} ({}) since {:.0}", state.phase, state.reason, state.since);
    println!("  {}", state.message);
    if state.attempt > 0 {
        println!("  attempt {}", state.attempt);
    }
    let plan = plan_observed.as_ref().map_or_else(|| "no plan".to_owned(), |plan| format!("plan {plan}"));
    println!("ready: {ready} ({plan})");
    if let Some(at) = last_success {
        println!("last plan finished: {at:.0}");
    }
    print_software(software);
}

fn print_journal(journal: &Journal) {
    match (&journal.active, &journal.quarantine) {
        (Some(active), _) => println!("journal: plan {} at attempt {}", active.plan.id(), active.attempt),
        (None, Some(Quarantine { plan, failure, .. })) => {
            println!("journal: plan {plan} is quarantined ({}): {}", failure.reason, failure.message);
        }
        (None, None) => println!("journal: no plan under way"),
    }
}

/// A table of software, as kubectl prints tables.
pub(super) fn print_software(software: &[SoftwareStatus]) {
    let dash = || "-".to_owned();
    let mut rows = vec![["SOFTWARE", "CURRENT", "DESIRED", "CHANGE", "DISRUPTION"].map(str::to_owned)];
    for one in software {
        let change = match one.change {
            Change::None => dash(),
            Change::Change => "change".to_owned(),
            Change::Reboot => "reboot".to_owned(),
        };
        rows.push([
            one.name.to_string(),
            one.current.as_ref().map_or_else(dash, ToString::to_string),
            one.desired.as_ref().map_or_else(dash, ToString::to_string),
            change,
            format!("{:?}", one.disruption).to_lowercase(),
        ]);
    }
    let mut widths = [0; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        println!("{}", cells.join("  ").trim_end());
    }
}
