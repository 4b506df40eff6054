//! One call, timed, in each of the ways that are compared.

use super::house::{House, Tool};
use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use toolhost::executor::process::shape_lines;
use toolhost::executor::{Call, Context, Ending, Executor, Outcome};
use toolhost::service::{Arguments, CallRequest, Caller, Sink};
use toolhost::{fault, policy};

/// A program with the arguments, environment and folder that the layers would give it, and none of
/// the layers.
#[derive(Clone, Debug)]
pub struct Bare {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    folder: PathBuf,
}

impl Bare {
    pub fn of(shape: &policy::Shape) -> anyhow::Result<Bare> {
        let policy::Program::Path(program) = &shape.runtime.program else {
            bail!("no program of its own")
        };
        let mut arguments: Vec<OsString> =
            shape.runtime.arguments.iter().map(OsString::from).collect();
        arguments.extend(shape.script.iter().map(OsString::from));
        let lines = shape_lines(shape);
        let pairs = lines.iter().filter_map(|line| line.split_once('='));
        Ok(Bare {
            program: program.clone(),
            arguments,
            environment: pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            folder: shape.folder.clone(),
        })
    }

    /// Surroundings alone; `instead` gives them a program.
    pub fn plain(folder: &Path, environment: [(&str, &str); 3]) -> Bare {
        let environment = environment
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        Bare {
            program: PathBuf::new(),
            arguments: Vec::new(),
            environment,
            folder: folder.to_owned(),
        }
    }

    /// Another program in the same surroundings.
    pub fn instead(&self, program: &Path, arguments: &[OsString]) -> Bare {
        Bare {
            program: program.to_owned(),
            arguments: arguments.to_vec(),
            ..self.clone()
        }
    }

    /// The same call through bubblewrap, in the view that our layers would show, or close to it.
    pub fn behind_bwrap(&self, bwrap: &Path, shape: &policy::Shape) -> Bare {
        let mut arguments: Vec<OsString> = ["--unshare-all", "--die-with-parent", "--new-session"]
            .map(Into::into)
            .into();
        let mut add =
            |words: &[&std::ffi::OsStr]| arguments.extend(words.iter().map(|w| (*w).to_owned()));
        let grants = shape
            .grants
            .iter()
            .map(|grant| grant.area.folder().to_owned());
        let system = policy::SYSTEM_FOLDERS
            .iter()
            .chain(&policy::SYSTEM_ETC)
            .map(PathBuf::from);
        // First, so that a grant below /tmp lies on it, as it does in ours.
        for folder in ["/tmp", "/dev/shm"] {
            add(&["--tmpfs".as_ref(), folder.as_ref()]);
        }
        let mut shown: Vec<PathBuf> = Vec::new();
        for path in system
            .chain(shape.runtime.roots.iter().cloned())
            .chain(grants)
        {
            let Ok(meta) = path.symlink_metadata() else {
                continue;
            };
            if shown.iter().any(|folder| path.starts_with(folder)) {
                continue;
            }
            match std::fs::read_link(&path) {
                Ok(target) if meta.is_symlink() => {
                    add(&["--symlink".as_ref(), target.as_ref(), path.as_ref()])
                }
                _ => add(&["--ro-bind".as_ref(), path.as_ref(), path.as_ref()]),
            }
            if meta.is_dir() {
                shown.push(path);
            }
        }
        for device in [
            "/dev/null",
            "/dev/zero",
            "/dev/full",
            "/dev/random",
            "/dev/urandom",
        ] {
            add(&["--dev-bind".as_ref(), device.as_ref(), device.as_ref()]);
        }
        add(&[
            "--proc".as_ref(),
            "/proc".as_ref(),
            "--chdir".as_ref(),
            self.folder.as_ref(),
        ]);
        add(&["--".as_ref(), self.program.as_ref()]);
        arguments.extend(self.arguments.iter().cloned());
        Bare {
            folder: "/".into(),
            ..self.instead(bwrap, &arguments)
        }
    }

    /// vfork and exec, write the input, read to the end, wait.
    pub fn call(&self, input: &[u8]) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(n, v)| (n, v)));
        command.current_dir(&self.folder);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("{}", self.program.display()))?;
        child.stdin.take().context("stdin")?.write_all(input)?;
        let (mut output, mut log) = (Vec::new(), String::new());
        child
            .stdout
            .take()
            .context("stdout")?
            .read_to_end(&mut output)?;
        child
            .stderr
            .take()
            .context("stderr")?
            .read_to_string(&mut log)?;
        let status = child.wait()?;
        let took = started.elapsed();
        ensure!(
            status.success() && !output.is_empty(),
            "{}: {status}: {}",
            self.program.display(),
            log.trim()
        );
        Ok(took)
    }
}

/// One call of an executor, timed on the thread that waits for it.
pub async fn run(
    executor: &dyn Executor,
    tool: &Tool,
    input: &Value,
) -> (Duration, Result<Outcome, fault::Fault>) {
    let events = toolhost::executor::ToolSender::unheard();
    let mut call = tool.call(input);
    let started = Instant::now();
    let context = Context::new("bench", "bench", Default::default());
    let ended = match read(executor, &mut call, &context).await {
        Ok(()) => executor.run(&context, call, &events).await,
        Err(fault) => Err(fault),
    };
    (started.elapsed(), ended)
}

/// Reads the script of a call, as the service does for each.
async fn read(
    executor: &dyn Executor,
    call: &mut Call,
    context: &Context,
) -> Result<(), fault::Fault> {
    let confinement = call.confinement.as_mut();
    if let Some(confinement) = confinement.filter(|it| it.shape.script.is_some()) {
        let script = executor.read(&confinement.shape, &context.deadline).await?;
        confinement.per_call.script = Some(Arc::new(script));
    }
    Ok(())
}

/// As `run`, for a tool that answers.
pub async fn answered(
    executor: &dyn Executor,
    tool: &Tool,
    input: &Value,
) -> anyhow::Result<Duration> {
    let (took, ended) = run(executor, tool, input).await;
    match ended.map_err(told)?.ending {
        Ending::Answered(_) => Ok(took),
        other => bail!("{}: {other:?}", tool.confinement.shape.tool),
    }
}

/// A fault with what only the person is told.
pub fn told(fault: fault::Fault) -> anyhow::Error {
    anyhow::anyhow!("{fault}: {}", fault.person.as_deref().unwrap_or_default())
}

impl House {
    /// As the host does it: in a task of the runtime.
    pub fn task<T: Send + 'static>(
        &self,
        task: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(self.runtime.spawn(task))?
    }

    /// A cold call: the launcher is up, the program starts anew.
    pub fn cold(&self, tool: &Tool, input: &Value) -> anyhow::Result<Duration> {
        let (scripts, tool, input) = (self.scripts.clone(), tool.clone(), input.clone());
        self.task(async move { answered(&*scripts, &tool, &input).await })
    }

    /// The whole road: registry, arguments, policy, executor, output schema, audit record. The mean
    /// of so many calls.
    pub fn through_service(
        &self,
        tool: &str,
        input: &Value,
        calls: u32,
    ) -> anyhow::Result<Duration> {
        let service = Arc::clone(&self.service);
        let arguments = Arguments::Value(input.clone());
        let request = CallRequest::new(Caller::named("bench"), format!("bench:{tool}"), arguments);
        self.task(async move {
            let mut sum = Duration::ZERO;
            for _ in 0..calls {
                let request = request.clone();
                let started = Instant::now();
                let report = service.call(request, Sink::none()).await;
                sum += started.elapsed();
                if let Some(fault) = report.outcome.into_fault() {
                    return Err(told(fault));
                }
            }
            Ok(sum / calls.max(1))
        })
    }
}
