//! The `nelumbo` command: a folder or a file for each of its commands, listed in `args::Command`, and what
//! they share.

mod args;
mod argv;
mod bench;
mod chat;
mod compare;
mod config;
mod date;
mod device_args;
mod devices;
mod doctor;
mod exit;
mod generate;
mod inspect;
mod models;
mod options;
mod output;
mod perplexity;
mod plan;
mod prompt;
mod prompt_bar;
mod quantize;
mod reading;
mod report;
mod run;
mod session;
mod show;
mod simulate;
mod speculation;
mod stopwatch;
mod suggest;
mod temporary;
mod tokenize;
mod types;
mod values;
mod version;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command as Grammar, CommandFactory, FromArgMatches};

use args::{Cli, Command, GlobalArgs};
use config::Config;
use exit::Failure;
use prompt::Given;

fn main() -> ExitCode {
    prepare_mesa();
    let (cli, given) = match parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(Unparsed::File(failure)) => {
            exit::report(&failure);
            return ExitCode::from(failure.code());
        }
        Err(Unparsed::Line(error)) => {
            // Help goes to stdout with 0, a usage error to stderr with 2. Neither minds a closed pipe.
            let printed = error.print().and_then(|()| std::io::stdout().flush());
            let lost = printed.err().filter(|_| !error.use_stderr());
            let Some(failure) = lost.map(Failure::stdout) else {
                return ExitCode::from(error.exit_code() as u8);
            };
            exit::report(&failure);
            return ExitCode::from(failure.code());
        }
    };
    start_log(&cli.global);
    exit::run_guarded(move || dispatch(cli, given))
}

/// Cores up to which Mesa's software driver gets two threads for each.
const FEW_CORES: usize = 4;

/// Mesa's layer that reorders devices looks for a Wayland session and complains on stderr where
/// there is none. We choose among all adapters ourselves and need no order. And its software driver
/// splits a dispatch evenly among its threads, as many as cores, and waits for the last: with few
/// cores, twice as many even out who starts late. Measured on two: a fifth more tokens a second.
fn prepare_mesa() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores <= FEW_CORES && std::env::var_os("LP_NUM_THREADS").is_none())
        .then(|| (2 * cores).to_string());
    #[expect(
        unsafe_code,
        reason = "the environment is the only way to tell the Vulkan loader"
    )]
    // SAFETY: this is the first statement of the program; no other thread runs yet.
    unsafe {
        std::env::set_var("NODEVICE_SELECT", "1");
        if let Some(threads) = threads {
            std::env::set_var("LP_NUM_THREADS", threads);
        }
    }
}

/// What is wrong before anything starts.
enum Unparsed {
    /// With the command line or the environment.
    Line(clap::Error),
    /// With the file of settings.
    File(Failure),
}

/// The arguments, and where some of them come from.
fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<(Cli, Given), Unparsed> {
    let mut argv = argv::normalise(argv);
    if argv.len() == 1 {
        // clap would do the same, but not where a variable sets an option
        argv.push("--help".into());
    }
    // Help names the variables and keeps what is in them to itself.
    let command = Cli::command()
        .mut_args(|arg| arg.hide_env_values(true))
        .mut_subcommands(|sub| sub.mut_args(|arg| arg.hide_env_values(true)));
    let read = |command: Grammar, argv: &[OsString]| {
        command.try_get_matches_from(argv).map_err(Unparsed::Line)
    };
    let mut matches = read(command.clone(), &argv)?;
    // which file and which command are known now; its values are defaults of a second reading
    if let Some(name) = matches.subcommand_name().map(str::to_owned)
        && !["completions", "version"].contains(&name.as_str())
    {
        let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
        let config = Config::load(file, &command, &name).map_err(Unparsed::File)?;
        matches = read(config.apply(command, &name), &argv)?;
    }
    let given = matches
        .subcommand()
        .map_or_else(Given::default, |(_, sub)| Given::of(sub));
    let cli = Cli::from_arg_matches(&matches).map_err(Unparsed::Line)?;
    Ok((cli, given))
}

fn dispatch(cli: Cli, given: Given) -> Result<(), Failure> {
    let global = &cli.global;
    if global.cache_list {
        return models::ls::ls(false, global);
    }
    match cli.command {
        Command::Run(args) => run::run(*args, global, given),
        Command::Chat(args) => chat::chat(*args, global, given),
        Command::Bench(args) => bench::bench(*args, global, given),
        Command::Perplexity(args) => perplexity::perplexity(*args, global, given),
        Command::Quantize(args) => quantize::quantize(&args, global),
        Command::Plan(args) => plan::plan(&args, global),
        Command::Compare(args) => compare::compare(*args, global, given),
        Command::Simulate(args) => simulate::simulate(&args, global),
        Command::Show(args) => show::show(&args, global),
        Command::Tokenize(args) => tokenize::tokenize(&args, global),
        Command::Devices { json, backend } => devices::devices(json, options::backend(&backend)),
        Command::Doctor(args) => doctor::doctor(&args, global),
        Command::Pull { reference, force } => models::pull(&reference, force, global),
        Command::Rm(args) => models::rm::rm(&args, global),
        Command::Ls { json } => models::ls::ls(json, global),
        Command::Completions { shell } => version::completions(shell),
        Command::Version { json } => version::version(json),
    }
}

/// Warnings always, more with -v. `NELUMBO_LOG` takes a filter of its own.
fn start_log(global: &GlobalArgs) {
    let filter = match (global.quiet, global.verbose) {
        (true, _) => "nelumbo=warn",
        (false, 0) => "nelumbo=warn",
        (false, 1) => "nelumbo=info,warn",
        (false, _) => "nelumbo=debug,info",
    };
    env_logger::Builder::from_env(env_logger::Env::new().filter_or("NELUMBO_LOG", filter))
        .format(|out, record| {
            let level = record.level().as_str().to_lowercase();
            writeln!(out, "{level}: {}", record.args())
        })
        .init();
}
