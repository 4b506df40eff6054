//! `cargo bench`: what a call costs, beside the same program without layers and beside bubblewrap.
//!
//! For: whoever changes the layers or the road. In: `--quick` (fewer rounds), `--long` (100,000
//! calls where memory is looked at), `--strict` (a missed gate fails the run), and words: only
//! sections whose name holds one of them. Out: a table with the gate beside each number.
//!
//! Whatever is compared is called in turn within one run, so that a busy machine slows all of it
//! alike; gates are ratios of the p50. Needs nothing installed: what is missing is named and not
//! measured.

#[path = "speed/bare.rs"]
mod bare;
#[path = "speed/board.rs"]
mod board;
#[path = "speed/calls.rs"]
mod calls;
#[path = "speed/cases.rs"]
mod cases;
#[path = "speed/clients.rs"]
mod clients;
#[path = "speed/code.rs"]
mod code;
#[path = "speed/house.rs"]
mod house;
#[path = "speed/modules.rs"]
mod modules;
#[path = "speed/network.rs"]
mod network;
#[path = "speed/packages.rs"]
mod packages;
#[path = "speed/parallel.rs"]
mod parallel;
#[path = "speed/ready.rs"]
mod ready;
#[path = "speed/speakers.rs"]
mod speakers;
#[path = "speed/stdio.rs"]
mod stdio;
#[path = "speed/whole.rs"]
mod whole;

use board::Board;
use house::House;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    pub quick: bool,
    pub long: bool,
    strict: bool,
    words: Vec<String>,
}

impl Plan {
    fn from_arguments() -> Result<Plan, String> {
        let mut plan = Plan {
            quick: false,
            long: false,
            strict: false,
            words: Vec::new(),
        };
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--bench" => {}
                "--quick" => plan.quick = true,
                "--long" => plan.long = true,
                "--strict" => plan.strict = true,
                flag if flag.starts_with('-') => {
                    return Err(format!(
                        "{flag} is not known; there are --quick, --long, --strict"
                    ));
                }
                word => plan.words.push(word.to_owned()),
            }
        }
        Ok(plan)
    }

    /// Rounds of a comparison: 30 when quick.
    pub fn rounds(&self, usual: usize) -> usize {
        if self.quick { usual.min(30) } else { usual }
    }
}

/// A section of the table.
type Case = fn(&House, &Plan, &mut Board) -> anyhow::Result<()>;

const CASES: [(&str, Case); 22] = [
    ("static", cases::static_binary),
    ("python", cases::python),
    ("ready", ready::python),
    ("code", code::python),
    ("node", cases::node),
    ("bun", cases::bun),
    ("packages", packages::python),
    ("wasi", cases::wasi),
    ("hosts", network::hosts),
    ("timeout", cases::timeout),
    ("parallel-static", parallel::static_binary),
    ("parallel-python", parallel::python),
    ("clients-wasi", clients::wasi),
    ("clients-python", clients::python),
    ("clients-full", clients::full),
    ("clients-memory", clients::memory),
    ("stdio", stdio::wasi),
    ("mcp-servers", stdio::others),
    ("speakers", speakers::shown),
    ("kill", whole::kill),
    ("load", whole::load),
    ("cli", whole::cli),
];

fn main() -> ExitCode {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("measures only under `cargo bench` (which passes --bench)");
        return ExitCode::SUCCESS;
    }
    let plan = match Plan::from_arguments() {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    match run(&plan) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(u8::from(plan.strict)),
        Err(why) => {
            eprintln!("the bench broke off: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(plan: &Plan) -> anyhow::Result<bool> {
    let started = Instant::now();
    let house = House::new()?;
    let mut board = Board::default();
    let kernel = nix::sys::utsname::uname()?;
    let counted = if house.launchers.sandbox.counted() {
        "counted by cgroup"
    } else {
        "sampled"
    };
    let bwrap = if bwrap().is_some() {
        "bubblewrap beside"
    } else {
        "no bubblewrap on PATH"
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "Linux {}, {cpus} CPUs, load {}; limits {counted}; {bwrap}",
        kernel.release().to_string_lossy(),
        busy()
    );
    if busy().parse().is_ok_and(|load: f64| load > 1.0) {
        println!(
            "the machine is busy: tails are its neighbours', and at many at once the kernel's \
            session groups"
        );
        println!(
            "(sched_autogroup) give each tool, a session of its own, more CPU than the bare \
            programs get"
        );
    }
    for (name, case) in CASES {
        if plan.words.is_empty() || plan.words.iter().any(|word| name.contains(word.as_str())) {
            case(&house, plan, &mut board)?;
            // What one section kept alive is not to weigh on the next.
            house.launchers.close();
            house.wasm.close();
            toolhost::executor::process::settle(Duration::from_secs(2));
        }
    }
    let met = board.finish();
    println!(
        "in {:.0} s; load now {}",
        started.elapsed().as_secs_f64(),
        busy()
    );
    Ok(met)
}

/// Load average of the last minute: how far the times can be trusted.
fn busy() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}

pub fn bwrap() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join("bwrap"))
        .find(|file| file.is_file())
}
