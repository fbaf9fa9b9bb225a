(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(method_definition name: [(property_identifier) (private_property_identifier)] @name) @method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(program (lexical_declaration (variable_declarator name: (identifier) @name)) @variable)
(program (variable_declaration (variable_declarator name: (identifier) @name)) @variable)
(program (export_statement declaration: (lexical_declaration (variable_declarator name: (identifier) @name))) @variable)

(call_expression function: [(identifier) @call (member_expression property: (property_identifier) @call)])
(new_expression constructor: [(identifier) @call (member_expression property: (property_identifier) @call)])

(import_statement
  (import_clause
    [(identifier) @imported
     (named_imports (import_specifier name: (identifier) @imported))
     (namespace_import (identifier) @imported)])
  source: (string (string_fragment) @module))
(import_statement . source: (string (string_fragment) @module))
(export_statement source: (string (string_fragment) @module))
