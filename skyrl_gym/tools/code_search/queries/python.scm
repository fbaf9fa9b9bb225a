(class_definition name: (identifier) @name superclasses: (argument_list)? @bases) @class
(decorated_definition definition: (class_definition name: (identifier) @name superclasses: (argument_list)? @bases)) @class
(function_definition name: (identifier) @name) @function
(decorated_definition definition: (function_definition name: (identifier) @name)) @function
(module (expression_statement (assignment left: (identifier) @name)) @variable)
(class_definition body: (block (expression_statement (assignment left: (identifier) @name)) @variable))
(module (type_alias_statement left: (type (identifier) @name)) @type)

(call function: [(identifier) @call (attribute attribute: (identifier) @call)])
(decorator [(identifier) @call (attribute attribute: (identifier) @call)])

(import_statement name: [(dotted_name) @module (aliased_import name: (dotted_name) @module)])
(import_from_statement
  module_name: (_) @module
  name: [(dotted_name) @imported (aliased_import name: (dotted_name) @imported)])
(import_from_statement module_name: (_) @module (wildcard_import) @imported)
