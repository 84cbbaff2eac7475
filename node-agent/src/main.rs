//! node-agent: the host daemon of infrop.

use clap::Parser;

/// Brings a host to the software versions its Kubernetes node asks for, and says so.
///
/// This version answers --help and --version only: it changes nothing on a host yet.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {}

fn main() {
    let Arguments {} = Arguments::parse();
}
