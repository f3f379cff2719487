//! A machine for packages: this one as the lower layer of an overlay, with what is written in memory, and with
//! processes and a network of its own. No service manager runs there.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use petrel_tests::{Finished, PATIENCE, ProcessTree, Tree, run};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The machine. Its processes end with the value.
pub struct Machine {
    _tree: Tree,
    holder: Child,
    /// The first process of the machine, as this one numbers it.
    first: u32,
}

impl Machine {
    /// Starts it, with the directory `share` as /share; `Err` says why there can be none.
    pub fn start(share: &Path) -> Result<Machine, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        let tree = Tree::new();
        tree.directory("machine");
        let mut holder = Command::new("unshare")
            .args([
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-ec",
                MAKE,
            ])
            .arg(tree.path("machine"))
            .arg(share)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut word = String::new();
        let output = holder.stdout.take().expect("it is piped");
        let read = BufReader::new(output).read_line(&mut word);
        if read.is_err() || word != "ready\n" {
            let _ = holder.kill();
            let output = holder
                .wait_with_output()
                .map_err(|error| error.to_string())?;
            return Err(String::from_utf8_lossy(&output.stderr)
                .trim()
                .replace('\n', "; "));
        }
        let first = ProcessTree::of(holder.id()).pids[1];
        Ok(Machine {
            _tree: tree,
            holder,
            first,
        })
    }

    /// A shell there with this script.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.first.to_string()])
            .args([
                "--mount", "--net", "--pid", "--root", "--wd", "sh", "-ec", script,
            ])
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C.UTF-8");
        command
    }

    /// Runs a script there.
    pub fn try_run(&self, script: &str) -> Finished {
        run(&mut self.shell(script), PATIENCE)
    }

    /// Runs a script there that has to succeed. The answer is what it printed.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        let finished = self.try_run(script);
        let text = finished.text();
        assert_eq!(finished.code(), 0, "{script}\n{text}{}", finished.errors);
        text
    }

    /// Runs `work` in a thread that is in the network there, as are the threads that it starts.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let network = File::open(format!("/proc/{}/ns/net", self.first)).expect("it runs");
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may");
                work()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts the service as its unit says, with the socket that the service manager holds for it.
    pub fn start_service(&self, socket: &TcpListener) -> Child {
        let start = self.unit("petrel.service", "ExecStart");
        let socket = OwnedFd::from(socket.try_clone().expect("a descriptor"));
        let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec ".to_owned() + &start;
        let mut command = self.shell(&script);
        command
            .stdin(socket)
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        command.spawn().expect("nsenter is there")
    }

    /// What a unit of the package says.
    pub fn unit(&self, unit: &str, key: &str) -> String {
        let text = self.run(&format!("cat /usr/lib/systemd/system/{unit}"));
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value
            .unwrap_or_else(|| panic!("{unit} has no {key}"))
            .to_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Makes the machine below $0 and shows $1 there, says so, and stays.
const MAKE: &str = "
mount -t tmpfs tmpfs \"$0\"
mkdir \"$0/upper\" \"$0/work\" \"$0/merged\"
mount -t overlay overlay -o \"lowerdir=/,upperdir=$0/upper,workdir=$0/work\" \"$0/merged\"
mount -t proc proc \"$0/merged/proc\"
mount --rbind /dev \"$0/merged/dev\"
mount -t tmpfs tmpfs \"$0/merged/run\"
mount -t tmpfs -o mode=1777 tmpfs \"$0/merged/tmp\"
mkdir -p \"$0/merged/share\"
mount --bind \"$1\" \"$0/merged/share\"
ip link set lo up
echo ready
exec chroot \"$0/merged\" sleep 900
";
