//! Hosts that are there, some with faults: those have their reason, the others finish.

use std::{fmt::Write as _, fs, path::Path, time::Instant};

use anyhow::{Context, ensure};
use images::{site, steps::Steps};
use infrop::provider::lab::Power;
use tests::{
    bundles,
    infrastructure::Infrastructure,
    kubeadm::CONTAINERD_CONFIG,
    lab::{BUNDLES, TestLab},
};

const NAME: &str = "static";

/// The address of the endpoint, which the control plane carries.
const ADDRESS: &str = "10.88.0.5";

const HOSTS: [&str; 6] = ["cp1", "w1", "wrongkey", "off", "full", "noapt"];

/// What such hosts need beside infrop's defaults: they are lab hosts, whose kernel is this computer's.
const LAB: &str = "  kubelet: { cgroupDriver: cgroupfs, failCgroupV1: false, failSwapOn: false, localStorageCapacityIsolation: false }
  kubeProxy: { conntrack: { maxPerCore: 0, min: 0 } }
  ignorePreflightErrors: [SystemVerification, FileContent--proc-sys-net-bridge-bridge-nf-call-iptables, Swap]
";

pub(crate) async fn faults() -> anyhow::Result<()> {
    TestLab::with("static", &HOSTS, async |lab| {
        // Room for nothing where the package is put first.
        lab.run("full", "mkdir -p /var/lib/infrop; mount -t tmpfs -o size=1m none /var/lib/infrop").await?;
        lab.run("noapt", &format!("mount -t tmpfs none {BUNDLES}/1.37.1/apt")).await?;
        lab.power("off", Power::Cut).await?;
        let site = site::ensure(&bundles::cache()?, &Steps::stderr()).await?;
        lab.lab().offer("site", &site).await?;
        let namespace = lab.lab().network_namespace().await?;
        let infrastructure = Infrastructure::new(NAME, &document(lab, &site)?)?.inside(namespace);

        // A key that no host knows: nobody is let in, and nothing is claimed to be free.
        let key = lab.lab().directory().join("ssh/id_ed25519").display().to_string();
        let other = lab.lab().directory().join("hosts/w1/upper/etc/ssh/ssh_host_ed25519_key");
        let other = other.display().to_string();
        infrastructure.edit(&key, &other)?;
        let refused = infrastructure.run(&["apply"]).await?;
        ensure!(refused.code == 3 && refused.stderr.contains("cp1 does not let us in"), "{refused:?}");
        infrastructure.edit(&other, &key)?;

        let ended = infrastructure.run(&["apply"]).await?;
        ensure!(ended.code == 3, "{ended:?}");
        let reason = |host: &str| {
            let start = format!("infrop: {host}: ");
            let line = ended.stderr.lines().find_map(|line| line.strip_prefix(&start));
            line.with_context(|| format!("{host} has no reason in {}", ended.stderr))
        };
        ensure!(reason("wrongkey")?.contains("is not trusted"), "{}", reason("wrongkey")?);
        ensure!(reason("off")?.contains("does not answer by ssh"), "{}", reason("off")?);
        ensure!(reason("full")?.contains("No space left on device"), "{}", reason("full")?);
        ensure!(reason("noapt")?.contains("gave up"), "{}", reason("noapt")?);
        let nodes =
            lab.run("cp1", "kubectl --kubeconfig /etc/kubernetes/admin.conf get nodes --no-headers").await?;
        ensure!(nodes.lines().count() == 2 && nodes.lines().all(|line| line.contains(" Ready ")), "{nodes}");

        // The control plane carries the endpoint's address; w1 joined through it, and infrop saw the nodes there.
        let carried = lab.run("cp1", "ip -oneline address show").await?;
        ensure!(carried.contains(&format!(" {ADDRESS}/32 ")), "{carried}");
        let call = format!("curl --silent --insecure --max-time 5 https://{ADDRESS}:6443/readyz");
        ensure!(lab.run("w1", &call).await? == "ok", "the endpoint does not answer");
        let joined = lab.run("w1", "grep server: /etc/kubernetes/kubelet.conf").await?;
        ensure!(joined.contains(&format!("https://{ADDRESS}:6443")), "{joined}");

        // Who was at work stood there until there was a Lease.
        let left = lab.run("cp1", "ls -A /var/lib/infrop").await?;
        ensure!(!left.contains("writer-"), "{left}");
        recorded(lab, &infrastructure).await?;

        others_are_left_alone(lab, &infrastructure).await?;
        put_right(lab, &infrastructure).await?;
        given_back(lab, &infrastructure).await
    })
    .await
}

/// What somebody else has or brought is neither used nor replaced.
async fn others_are_left_alone(lab: &TestLab, infrastructure: &Infrastructure) -> anyhow::Result<()> {
    lab.run("w1", "sed -i 's/static/other/' /var/lib/infrop/owner.json").await?;
    // A host that a newer infrop brought its node-agent to keeps it.
    let newer = "cp /var/lib/dpkg/status /root/status\n\
                 sed -i '/^Package: node-agent$/,/^$/s/^Version: .*/Version: 99.0.0/' /var/lib/dpkg/status\n\
                 cp /var/lib/infrop/delivered /root/delivered\n\
                 echo other > /var/lib/infrop/delivered";
    lab.run("cp1", newer).await?;
    let planned = infrastructure.run(&["plan"]).await?;
    ensure!(planned.stdout.contains("belongs to the infrastructure other"), "{planned:?}");
    ensure!(planned.stdout.contains("it has node-agent 99.0.0, and this infrop brings"), "{planned:?}");
    ensure!(!planned.stdout.contains("install node-agent on cp1"), "{planned:?}");
    lab.run("w1", "sed -i 's/other/static/' /var/lib/infrop/owner.json").await?;
    lab.run("cp1", "mv /root/status /var/lib/dpkg/status && mv /root/delivered /var/lib/infrop/delivered")
        .await?;
    Ok(())
}

/// When what their reasons name is put right, the same command brings all of them in.
async fn put_right(lab: &TestLab, infrastructure: &Infrastructure) -> anyhow::Result<()> {
    let definition = lab.lab().definition()?;
    let right = definition.hosts.iter().find(|host| host.name.as_str() == "wrongkey");
    let (right, wrong) = right.zip(definition.hosts.first()).context("there is no wrongkey")?;
    let named =
        |key: &str| format!("name: wrongkey, address: {}, hostKeys: ['{}']", right.address, key.trim());
    infrastructure.edit(&named(&wrong.host_key), &named(&right.host_key))?;
    lab.power("off", Power::On).await?;
    lab.run("full", "umount /var/lib/infrop").await?;
    lab.run("noapt", &format!("umount {BUNDLES}/1.37.1/apt; node-agent retry")).await?;
    let started = Instant::now();
    infrastructure.insist(&["apply"]).await?;
    eprintln!("the other four hosts: {:.1} s", started.elapsed().as_secs_f64());
    let nodes = nodes(lab).await?;
    ensure!(nodes.len() == HOSTS.len() && nodes.iter().all(|line| line.contains(" Ready ")), "{nodes:?}");
    let again = infrastructure.insist(&["apply"]).await?;
    ensure!(again.contains("Nothing to do"), "{again}");
    Ok(())
}

/// Hosts that are not wanted any more are reset and nobody's, one by one and in the end all.
async fn given_back(lab: &TestLab, infrastructure: &Infrastructure) -> anyhow::Result<()> {
    infrastructure.edit("pool: w, nodes: 5", "pool: w, nodes: 1")?;
    infrastructure.insist(&["apply", "--yes", "--max-delete", "4"]).await?;
    let left = nodes(lab).await?;
    ensure!(left.len() == 2 && left.iter().all(|line| line.contains(" Ready ")), "{left:?}");
    let stays = |host: &str| left.iter().any(|line| line.starts_with(&format!("{host} ")));
    for host in HOSTS.into_iter().filter(|host| !stays(host)) {
        is_nobodys(lab, host).await?;
    }
    infrastructure.insist(&["destroy", "--yes"]).await?;
    for host in HOSTS {
        is_nobodys(lab, host).await?;
    }
    // All of them can be used again, by whoever wants them.
    let planned = infrastructure.run(&["plan"]).await?;
    ensure!(planned.code == 2 && planned.stdout.contains("create cp1"), "{planned:?}");
    Ok(())
}

async fn nodes(lab: &TestLab) -> anyhow::Result<Vec<String>> {
    let get = "kubectl --kubeconfig /etc/kubernetes/admin.conf get nodes --no-headers";
    Ok(lab.run("cp1", get).await?.lines().map(str::to_owned).collect())
}

/// Neither Kubernetes nor node-agent nor a mark is left on a host.
async fn is_nobodys(lab: &TestLab, host: &str) -> anyhow::Result<()> {
    let look = "for file in /etc/kubernetes/kubelet.conf /etc/kubernetes/manifests/etcd.yaml /var/lib/etcd/member \
                /var/lib/infrop/owner.json; do if [ -e $file ]; then echo $file; fi; done\n\
                dpkg-query --show --showformat='${db:Status-Status} ${Package}\\n' node-agent 2>/dev/null | \
                grep -v '^not-installed' || true";
    let left = lab.run(host, look).await?;
    ensure!(left.trim().is_empty(), "{host} still has {left}");
    Ok(())
}

/// A key that nobody vouched for is taken down only where that was asked for, and is trusted from then on.
async fn recorded(lab: &TestLab, infrastructure: &Infrastructure) -> anyhow::Result<()> {
    let definition = lab.lab().definition()?;
    let host = definition.hosts.iter().find(|host| host.name.as_str() == "cp1").context("there is no cp1")?;
    let (address, key) = (host.address, host.host_key.trim());
    let file = lab.lab().directory().join("recorded");
    let named = format!("name: cp1, address: {address}");
    infrastructure.edit(&format!("{named}, hostKeys: ['{key}']"), &named)?;
    infrastructure.edit("\nssh:\n", &format!("\nssh:\n  knownHosts: {}\n", file.display()))?;
    let status = ["status", "-o", "json"];
    let refused = infrastructure.run(&status).await?;
    ensure!(refused.code == 64 && refused.stderr.contains("--record-host-keys makes it"), "{refused:?}");
    fs::write(&file, "")?;
    let seen = infrastructure.insist(&status).await?;
    ensure!(seen.contains("cp1 is not trusted"), "{seen}");
    ensure!(fs::read_to_string(&file)?.is_empty(), "a key was taken down that nobody asked for");
    fs::remove_file(&file)?;
    let seen = infrastructure.insist(&["status", "-o", "json", "--record-host-keys"]).await?;
    ensure!(!seen.contains("cp1 is not trusted"), "{seen}");
    // Without the comment behind it.
    let words: Vec<&str> = key.split(' ').take(2).collect();
    ensure!(fs::read_to_string(&file)?.contains(&words.join(" ")), "its key was not taken down");
    let seen = infrastructure.insist(&status).await?;
    ensure!(!seen.contains("cp1 is not trusted"), "{seen}");
    Ok(())
}

fn document(lab: &TestLab, site: &Path) -> anyhow::Result<String> {
    let definition = lab.lab().definition()?;
    let mut pools = [("cp", String::new()), ("w", String::new())];
    for host in &definition.hosts {
        // The key of another is as wrong as any.
        let known = if host.name.as_str() == "wrongkey" { definition.hosts.first() } else { Some(host) };
        let key = known.map(|host| host.host_key.trim()).context("a lab without hosts")?;
        let pool = usize::from(!host.name.as_str().starts_with("cp"));
        if let Some((_, text)) = pools.get_mut(pool) {
            let (name, address) = (&host.name, host.address);
            let _ = writeln!(text, "        - {{ name: {name}, address: {address}, hostKeys: ['{key}'] }}");
        }
    }
    let pools: String = pools.iter().map(|(name, hosts)| format!("        {name}:\n{hosts}")).collect();
    let key = lab.lab().directory().join("ssh/id_ed25519");
    let versions = site::versions(site)?;
    let versions: Vec<String> =
        versions.iter().map(|(name, version)| format!("{name}: '{version}'")).collect();
    let versions = versions.join(", ");
    let containerd: String = CONTAINERD_CONFIG.lines().map(|line| format!("      {line}\n")).collect();
    Ok(format!(
        "apiVersion: infrop.caos.ch/v1alpha1\n\
         kind: Infrastructure\n\
         metadata: {{ name: {NAME} }}\n\
         providers:\n  rack:\n    static:\n      pools:\n{pools}\
         cluster:\n  controlPlane: {{ provider: rack, pool: cp, nodes: 1 }}\n  \
         endpoint: {{ host: {ADDRESS} }}\n  \
         workers:\n  - {{ provider: rack, pool: w, nodes: 5 }}\n  \
         networking: {{ manifests: [lab-network.yaml] }}\n{LAB}\
         software:\n  kubernetes: 1.37.1\n  versions: {{ {versions} }}\n  bundle: {BUNDLES}/{{kubernetes}}\n  repositories:\n  \
         - name: bundle\n    uri: file:{BUNDLES}/{{kubernetes}}/apt\n    suite: ./\n    \
         keyFile: {BUNDLES}/{{kubernetes}}/apt/repository.asc\n  \
         - {{ name: site, uri: 'file:{BUNDLES}/site', suite: ./, keyFile: {BUNDLES}/site/repository.asc }}\n  \
         configuration:\n    kernel-modules: []\n    sysctl: {{ net.ipv4.ip_forward: '1' }}\n    \
         containerd-config: |\n{containerd}\
         ssh:\n  privateKey: {{ file: {} }}\n",
        key.display()
    ))
}
