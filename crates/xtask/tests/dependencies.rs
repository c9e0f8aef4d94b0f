//! The dependency tree against deny.toml: the rules that `cargo deny check` reads there, checked by
//! what cargo itself says about the tree. It needs no network and nothing installed. Advisories are
//! left to cargo-deny, which fetches them.

// A test says by a panic that it failed; so do its helpers.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rules() -> toml::Table {
    let text = std::fs::read_to_string(workspace().join("deny.toml")).unwrap();
    text.parse().unwrap()
}

/// The strings of a list, or of the `crate` keys of its tables.
fn strings(list: &toml::Value) -> Vec<String> {
    let text = |value: &toml::Value| {
        value
            .get("crate")
            .unwrap_or(value)
            .as_str()
            .map(str::to_owned)
    };
    list.as_array()
        .unwrap()
        .iter()
        .map(|value| text(value).unwrap())
        .collect()
}

/// One package of the tree, as `cargo metadata` describes it.
struct Package {
    name: String,
    version: String,
    /// `None` for members of the workspace.
    source: Option<String>,
    licence: Option<String>,
    features: BTreeSet<String>,
}

/// What is compiled for each target that deny.toml names. Cargo is asked once for all tests.
fn trees() -> &'static BTreeMap<String, Vec<Package>> {
    static TREES: OnceLock<BTreeMap<String, Vec<Package>>> = OnceLock::new();
    TREES.get_or_init(|| {
        let targets = strings(&rules()["graph"]["targets"]);
        let tree_of = |target: String| (target.clone(), tree(&target));
        targets.into_iter().map(tree_of).collect()
    })
}

/// What is compiled for one target, dependencies of tests and build scripts included.
fn tree(target: &str) -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--filter-platform", target])
        .current_dir(workspace())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap().iter();
    let mut features: BTreeMap<String, BTreeSet<String>> = nodes
        .map(|node| {
            let list = node["features"].as_array().unwrap().iter();
            (text(&node["id"]).unwrap(), list.filter_map(text).collect())
        })
        .collect();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let packages: Vec<_> = packages
        .filter_map(|package| {
            Some(Package {
                features: features.remove(package["id"].as_str()?)?,
                name: text(&package["name"])?,
                version: text(&package["version"])?,
                source: text(&package["source"]),
                licence: text(&package["license"]),
            })
        })
        .collect();
    assert!(packages.len() > 100, "the tree was not found");
    packages
}

/// Calls `check` with the tree of each target; its answers are faults.
fn faults_of_all(check: impl Fn(&[Package]) -> Vec<String>) -> BTreeSet<String> {
    trees()
        .values()
        .flat_map(|packages| check(packages))
        .collect()
}

#[test]
fn no_package_comes_in_two_versions_without_a_reason() {
    let skipped = strings(&rules()["bans"]["skip"]);
    let mut needed = BTreeSet::new();
    for (target, packages) in trees() {
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for package in packages {
            versions
                .entry(&package.name)
                .or_default()
                .insert(&package.version);
        }
        for (name, versions) in versions.into_iter().filter(|(_, list)| list.len() > 1) {
            let whole: Vec<_> = versions
                .iter()
                .map(|version| format!("{name}@{version}"))
                .collect();
            let excused = whole.iter().filter(|one| skipped.contains(one));
            assert!(
                excused.clone().count() + 1 >= whole.len(),
                "{target} has {} (`cargo tree -d` says why)",
                whole.join(" and ")
            );
            needed.extend(excused.cloned());
        }
    }
    let stale: Vec<_> = skipped
        .iter()
        .filter(|one| !needed.contains(*one))
        .collect();
    assert!(
        stale.is_empty(),
        "deny.toml skips what is not there twice: {stale:?}"
    );
}

#[test]
fn nothing_banned_is_in_the_tree_and_rustls_has_one_provider() {
    let rules = rules();
    let banned = strings(&rules["bans"]["deny"]);
    let denied: Vec<(String, Vec<String>)> = rules["bans"]["features"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| {
            (
                rule["crate"].as_str().unwrap().to_owned(),
                strings(&rule["deny"]),
            )
        })
        .collect();
    let faults = faults_of_all(|packages| {
        let mut faults = Vec::new();
        for package in packages {
            if banned.contains(&package.name) {
                faults.push(format!("{} is banned", package.name));
            }
            for (_, features) in denied.iter().filter(|(name, _)| *name == package.name) {
                let on = features
                    .iter()
                    .filter(|feature| package.features.contains(*feature));
                faults.extend(on.map(|feature| format!("{} with {feature}", package.name)));
            }
        }
        let rustls = packages.iter().find(|package| package.name == "rustls");
        assert!(rustls.is_some_and(|rustls| rustls.features.contains("ring")));
        faults
    });
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_licence_is_allowed() {
    let allowed = strings(&rules()["licenses"]["allow"]);
    let used = std::cell::RefCell::new(BTreeSet::new());
    let faults = faults_of_all(|packages| {
        let refused = packages.iter().filter(|package| {
            let licence = package.licence.as_deref().unwrap_or_default();
            let words = licence.split(['(', ')', ' ', '/']);
            used.borrow_mut().extend(words.map(str::to_owned));
            !is_allowed(licence, &allowed)
        });
        refused
            .map(|package| format!("{}: {:?}", package.name, package.licence))
            .collect()
    });
    assert!(faults.is_empty(), "{faults:#?}");
    let used = used.into_inner();
    let stale: Vec<_> = allowed.iter().filter(|one| !used.contains(*one)).collect();
    assert!(
        stale.is_empty(),
        "deny.toml allows what nothing uses: {stale:?}"
    );
}

/// Whether an SPDX expression can be met by the allowed licences.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    // Old manifests write OR as a slash. WITH only adds permissions.
    let text = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words: Vec<&str> = text.split_whitespace().collect();
    while let Some(at) = words.iter().position(|word| *word == "WITH") {
        words.drain(at..(at + 2).min(words.len()));
    }
    let mut rest = words.as_slice();
    any_of(&mut rest, allowed) == Some(true) && rest.is_empty()
}

/// `None` if it is no expression.
fn any_of(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut answer = all_of(words, allowed)?;
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        answer |= all_of(words, allowed)?;
    }
    Some(answer)
}

fn all_of(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut answer = one(words, allowed)?;
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        answer &= one(words, allowed)?;
    }
    Some(answer)
}

fn one(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    if *first != "(" {
        return Some(allowed.iter().any(|one| one == first));
    }
    let answer = any_of(words, allowed)?;
    *words = words.strip_prefix(&[")"])?;
    Some(answer)
}

#[test]
fn expressions_are_read_as_spdx_says() {
    let allowed = ["MIT".to_owned(), "ISC".to_owned(), "Apache-2.0".to_owned()];
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/GPL-3.0",
        "(MIT OR X) AND ISC",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT OR ISC) AND X",
        "MIT OR ISC AND",
        "(MIT",
    ] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

#[test]
fn everything_comes_from_the_one_registry() {
    let allowed = strings(&rules()["sources"]["allow-registry"]);
    let faults = faults_of_all(|packages| {
        let foreign = packages.iter().filter(|package| {
            let registry = package
                .source
                .as_deref()
                .map(|source| source.strip_prefix("registry+"));
            registry.is_some_and(|url| !url.is_some_and(|url| allowed.iter().any(|one| one == url)))
        });
        foreign
            .map(|package| format!("{}: {:?}", package.name, package.source))
            .collect()
    });
    assert!(faults.is_empty(), "{faults:#?}");
}
