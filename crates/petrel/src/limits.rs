//! Kernel limits of the process: open files and core dumps.

use engine::settings::ProcessSettings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sets the limits that the configuration asks for. Server processes inherit them. Returns one sentence for
/// each limit that the kernel refused.
pub(crate) fn apply(process: &ProcessSettings) -> Vec<String> {
    let mut refused = Vec::new();
    let files = getrlimit(Resource::Nofile);
    let hard = files.maximum.unwrap_or(u64::MAX);
    let wanted = process.fds_to_ask_for(hard);
    let asked = Rlimit {
        current: Some(wanted),
        maximum: Some(hard.max(wanted)),
    };
    if let Err(error) = setrlimit(Resource::Nofile, asked) {
        // Without privileges a process cannot exceed its hard limit.
        let most = Rlimit {
            current: Some(wanted.min(hard)),
            maximum: files.maximum,
        };
        let _ = setrlimit(Resource::Nofile, most);
        refused.push(format!(
            "server.max-fds: the kernel refused {wanted} open files ({error}); the limit is {hard}"
        ));
    }
    if process.core_files {
        let most = getrlimit(Resource::Core).maximum;
        let unlimited = Rlimit {
            current: None,
            maximum: None,
        };
        let raised = setrlimit(Resource::Core, unlimited).or_else(|_| {
            setrlimit(
                Resource::Core,
                Rlimit {
                    current: most,
                    maximum: most,
                },
            )
        });
        if let Err(error) = raised {
            refused.push(format!(
                "server.core-files has no effect: the kernel refused to raise the limit ({error})"
            ));
        }
    }
    refused
}
