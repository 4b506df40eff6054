//! Runs a Python script that may read one folder and touch nothing else.

use std::path::Path;
use std::time::Duration;
use toolhost_sandbox::{Access, Mount, Program, Sandbox, Spec, identity, reenter};

const SCRIPT: &str = "
import os, sys
print(sorted(os.listdir(sys.argv[1])))
for path, mode in [('/etc/shadow', 'r'), (sys.argv[1] + '/new', 'w')]:
    try:
        open(path, mode)
    except OSError as error:
        print(error)
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    reenter(&[]); // this program is also what raises the layers
    let folder = std::env::args().nth(1).ok_or("name a folder")?;
    let mut spec = Spec::new(Program::new("/usr/bin/python3", &["-c", SCRIPT, &folder]));
    spec.mounts = vec![Mount::at(Path::new(&folder), Access::Read)?];
    let sandbox = Sandbox::of_this_binary(identity::POOL)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = runtime.block_on(sandbox.run(spec, b"", Duration::from_secs(10)))?;
    print!("{}", String::from_utf8_lossy(&outcome.output));
    eprint!("{}", String::from_utf8_lossy(&outcome.log));
    for layer in outcome.layers.iter() {
        println!("{}: {}", layer.name, layer.state);
    }
    Ok(())
}
