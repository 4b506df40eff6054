//! Runs a script that may write one folder. Each line of stdin stops it, or lets it go on.

use std::io::BufRead;
use std::path::Path;
use std::time::Duration;
use toolhost_sandbox::{Access, Mount, Program, Sandbox, Spec, identity, reenter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    reenter(&[]);
    let [folder, script, seconds] = std::env::args()
        .skip(1)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| "name a folder, a script and a number of seconds")?;
    let mut spec = Spec::new(Program::new("/usr/bin/python3", &["-c", &script, &folder]));
    spec.mounts = vec![Mount::at(Path::new(&folder), Access::Write)?];
    let sandbox = Sandbox::of_this_binary(identity::POOL)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let timeout = Duration::from_secs(seconds.parse()?);
    let running = runtime.block_on(sandbox.spawn(spec, timeout))?;
    let mut is_paused = false;
    for line in std::io::stdin().lock().lines() {
        line?;
        is_paused = !is_paused;
        if is_paused {
            running.launcher.pause()?;
        } else {
            running.launcher.resume()?;
        }
    }
    let (exited, _) = runtime
        .block_on(running.launcher.wait())
        .map_err(toolhost_base::fault::Fault::from)?;
    println!("{:?} after {} ms of CPU time", exited.killed, exited.cpu_ms);
    Ok(())
}
