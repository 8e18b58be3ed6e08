//! The way through a query. Knows no bodies, and of the parser's tree only what counts.
//!
//! What a selection costs is proportional to how many there are of what it is in. So each
//! fragment is looked at once, as if it were used once, and its figures are multiplied
//! wherever it is used.

use std::collections::HashMap;

use apollo_parser::{
    Parser,
    cst::{
        Argument, CstChildren, Definition, Field, FragmentDefinition, Name, OperationDefinition,
        Selection, SelectionSet, Value as Literal,
    },
};
use serde_json::Value;

use super::{Costs, refused::Refused};

/// How many selections, of fields and of fragments, may be within each other: what this
/// module's own recursion, and the parser's, can take on any thread's stack.
pub(super) const NESTING_MAX: u32 = 200;

/// The figures of a selection, for one of what it is in.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    points: u64,
    /// Fields within each other.
    depth: u32,
    /// Fields beside each other.
    breadth: u64,
    /// Selections within each other.
    nesting: u32,
}

enum Fragment {
    Unseen(FragmentDefinition),
    /// On the way to itself.
    Open,
    Known(Figures),
}

struct Walk<'a> {
    costs: &'a Costs,
    fragments: HashMap<String, Fragment>,
    /// The number of each variable that may be one.
    variables: HashMap<String, Count>,
}

/// What is known of how many items there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Of(u64),
    /// It is null, or left out.
    Unsaid,
    /// It is something else.
    Bad,
}

pub(super) fn points(
    costs: &Costs,
    query: &str,
    operation_name: Option<&str>,
    variables: &Value,
) -> Result<u64, Refused> {
    let nesting_max = usize::try_from(NESTING_MAX).unwrap_or(usize::MAX);
    let tree = Parser::new(query)
        .recursion_limit(nesting_max)
        .token_limit(costs.tokens_max)
        .parse();
    if let Some(error) = tree.errors().next() {
        return Err(
            if error.is_limit() && tree.recursion_limit().high >= nesting_max {
                Refused::TooDeep {
                    max: costs.depth_max,
                }
            } else if error.is_limit() {
                Refused::TooLong {
                    max: costs.tokens_max,
                }
            } else {
                Refused::Syntax(error.message().to_owned())
            },
        );
    }
    let mut fragments = HashMap::new();
    let mut operations = Vec::new();
    for definition in tree.document().definitions() {
        match definition {
            Definition::OperationDefinition(operation) => operations.push(operation),
            Definition::FragmentDefinition(fragment) => {
                let name = fragment.fragment_name().and_then(|name| name.name());
                let name = text(name)?;
                let unseen = Fragment::Unseen(fragment);
                if fragments.insert(name.clone(), unseen).is_some() {
                    return Err(Refused::Twice(format!("fragment {name}")));
                }
            }
            _ => return Err(Refused::NotExecutable),
        }
    }
    let operation = chosen(operations, operation_name)?;
    let variables = counts(&operation, variables)?;
    let mut walk = Walk {
        costs,
        fragments,
        variables,
    };
    let selection = operation.selection_set().ok_or_else(unreadable)?;
    let figures = walk.selection(&selection, 0)?;
    Ok(figures.points)
}

/// The operation that is to be executed.
fn chosen(
    operations: Vec<OperationDefinition>,
    name: Option<&str>,
) -> Result<OperationDefinition, Refused> {
    let name_of =
        |operation: &OperationDefinition| operation.name().map(|name| name.text().to_string());
    let mut names = HashMap::new();
    for operation in &operations {
        let name = name_of(operation);
        if names.insert(name.clone(), ()).is_some() {
            return Err(Refused::Twice(
                name.unwrap_or("an operation without a name".to_owned()),
            ));
        }
    }
    let several = operations.len() > 1;
    let mut operations = operations.into_iter();
    match name {
        Some(name) => operations.find(|operation| name_of(operation).as_deref() == Some(name)),
        None if several => return Err(Refused::SeveralOperations),
        None => operations.next(),
    }
    .ok_or(Refused::NoOperation)
}

/// The variables of an operation, as far as they are numbers.
fn counts(
    operation: &OperationDefinition,
    given: &Value,
) -> Result<HashMap<String, Count>, Refused> {
    if !matches!(given, Value::Null | Value::Object(_)) {
        return Err(Refused::NotARequest);
    }
    let mut counts = HashMap::new();
    let definitions = operation.variable_definitions();
    let definitions = definitions
        .iter()
        .flat_map(|all| all.variable_definitions());
    for definition in definitions {
        let name = text(definition.variable().and_then(|variable| variable.name()))?;
        let default = definition
            .default_value()
            .and_then(|default| default.value());
        let count = match (given.get(&name), default) {
            (Some(value), _) => given_count(value),
            (None, Some(default)) => literal_count(&default, None),
            (None, None) => Count::Unsaid,
        };
        if counts.insert(name.clone(), count).is_some() {
            return Err(Refused::Twice(format!("variable ${name}")));
        }
    }
    Ok(counts)
}

fn given_count(value: &Value) -> Count {
    match value {
        Value::Null => Count::Unsaid,
        // A whole number may be written with a point. What is below 0 is none.
        Value::Number(number) => number.as_u64().map_or_else(
            || match number.as_f64() {
                Some(number) if number >= 0.0 && number.fract() == 0.0 => whole(number),
                _ => Count::Bad,
            },
            Count::Of,
        ),
        _ => Count::Bad,
    }
}

/// A whole number that is not below 0.
fn whole(number: f64) -> Count {
    // Without a fraction, or far beyond what can be paid.
    format!("{number:.0}")
        .parse()
        .map_or(Count::Of(u64::MAX), Count::Of)
}

fn literal_count(literal: &Literal, variables: Option<&HashMap<String, Count>>) -> Count {
    match literal {
        Literal::NullValue(_) => Count::Unsaid,
        Literal::IntValue(number) => {
            let digits = number.int_token().map(|token| token.text().to_owned());
            let digits = digits.unwrap_or_default();
            match digits.strip_prefix('-') {
                Some(digits) if digits.bytes().all(|digit| digit == b'0') => Count::Of(0),
                Some(_) => Count::Bad,
                // It is made of digits: what is no number here is too large for one.
                None => Count::Of(digits.parse().unwrap_or(u64::MAX)),
            }
        }
        Literal::Variable(variable) => {
            let name = variable.name().map(|name| name.text().to_string());
            let known = name.and_then(|name| variables?.get(&name).copied());
            known.unwrap_or(Count::Bad)
        }
        _ => Count::Bad,
    }
}

impl Walk<'_> {
    /// The figures of what a selection selects, `nesting` selections deep.
    fn selection(&mut self, set: &SelectionSet, nesting: u32) -> Result<Figures, Refused> {
        let nesting = self.within(nesting, 1)?;
        let mut figures = Figures {
            nesting: 1,
            ..Figures::default()
        };
        for selection in set.selections() {
            let part = match selection {
                Selection::Field(field) => self.field(&field, nesting)?,
                Selection::InlineFragment(inline) => {
                    let set = inline.selection_set().ok_or_else(unreadable)?;
                    self.selection(&set, nesting)?
                }
                Selection::FragmentSpread(spread) => {
                    let name = text(spread.fragment_name().and_then(|name| name.name()))?;
                    self.fragment(&name, nesting)?
                }
            };
            figures.points = figures.points.saturating_add(part.points);
            figures.depth = figures.depth.max(part.depth);
            figures.breadth = figures.breadth.saturating_add(part.breadth);
            figures.nesting = figures.nesting.max(part.nesting.saturating_add(1));
        }
        if figures.breadth > self.costs.breadth_max {
            let max = self.costs.breadth_max;
            return Err(Refused::TooBroad { max });
        }
        if figures.depth > self.costs.depth_max {
            return Err(self.too_deep());
        }
        Ok(figures)
    }

    fn field(&mut self, field: &Field, nesting: u32) -> Result<Figures, Refused> {
        let name = text(field.name())?;
        let selected = match field.selection_set() {
            Some(set) => self.selection(&set, nesting)?,
            None => Figures::default(),
        };
        let is_object = field.selection_set().is_some();
        let weight = self.costs.weights.get(&name).copied();
        let each = weight.unwrap_or(u64::from(is_object));
        let items = self.items(field, &name)?;
        Ok(Figures {
            points: each.saturating_add(selected.points).saturating_mul(items),
            depth: selected.depth.saturating_add(1),
            breadth: 1,
            nesting: selected.nesting,
        })
    }

    /// How many there are of a field, at least one.
    fn items(&self, field: &Field, name: &str) -> Result<u64, Refused> {
        let arguments = field.arguments();
        let arguments = arguments
            .iter()
            .flat_map(|all| -> CstChildren<Argument> { all.arguments() });
        let mut items = None;
        for argument in arguments {
            let argument_name = text(argument.name())?;
            if !self.costs.multipliers.contains(&argument_name) {
                continue;
            }
            let literal = argument.value().ok_or_else(unreadable)?;
            self.check_variable(&literal)?;
            match literal_count(&literal, Some(&self.variables)) {
                Count::Of(count) => items = items.max(Some(count)),
                Count::Unsaid => {}
                Count::Bad => {
                    return Err(Refused::BadCount {
                        field: name.to_owned(),
                        argument: argument_name,
                    });
                }
            }
        }
        let assumed = || self.costs.lists.get(name).copied();
        Ok(items.or_else(assumed).unwrap_or(1).max(1))
    }

    fn check_variable(&self, literal: &Literal) -> Result<(), Refused> {
        if let Literal::Variable(variable) = literal {
            let name = text(variable.name())?;
            if !self.variables.contains_key(&name) {
                return Err(Refused::NoVariable(name));
            }
        }
        Ok(())
    }

    fn fragment(&mut self, name: &str, nesting: u32) -> Result<Figures, Refused> {
        let Some(fragment) = self.fragments.get_mut(name) else {
            return Err(Refused::NoFragment(name.to_owned()));
        };
        let definition = match std::mem::replace(fragment, Fragment::Open) {
            Fragment::Known(figures) => {
                *fragment = Fragment::Known(figures);
                self.within(nesting, figures.nesting)?;
                return Ok(figures);
            }
            Fragment::Open => return Err(Refused::Cycle(name.to_owned())),
            Fragment::Unseen(definition) => definition,
        };
        let set = definition.selection_set().ok_or_else(unreadable)?;
        let figures = self.selection(&set, nesting)?;
        self.fragments
            .insert(name.to_owned(), Fragment::Known(figures));
        Ok(figures)
    }

    /// So many selections within so many others.
    fn within(&self, nesting: u32, more: u32) -> Result<u32, Refused> {
        let nesting = nesting.saturating_add(more);
        if nesting > NESTING_MAX {
            return Err(self.too_deep());
        }
        Ok(nesting)
    }

    fn too_deep(&self) -> Refused {
        Refused::TooDeep {
            max: self.costs.depth_max,
        }
    }
}

fn text(name: Option<Name>) -> Result<String, Refused> {
    name.map(|name| name.text().to_string())
        .ok_or_else(unreadable)
}

/// The parser found no fault with it, and left something out.
fn unreadable() -> Refused {
    Refused::Syntax("something is missing".to_owned())
}
