(class_declaration name: (type_identifier) @name (class_heritage)? @bases) @class
(abstract_class_declaration name: (type_identifier) @name (class_heritage)? @bases) @class
(interface_declaration name: (type_identifier) @name (extends_type_clause)? @bases) @interface
(type_alias_declaration name: (type_identifier) @name) @type
(enum_declaration name: (identifier) @name) @enum
(internal_module name: (identifier) @name) @module_scope
(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(function_signature name: (identifier) @name) @function
(method_definition name: [(property_identifier) (private_property_identifier)] @name) @method
(method_signature name: (property_identifier) @name) @method
(abstract_method_signature name: (property_identifier) @name) @method
(public_field_definition name: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(program (lexical_declaration (variable_declarator name: (identifier) @name)) @variable)
(program (variable_declaration (variable_declarator name: (identifier) @name)) @variable)
(program (export_statement declaration: (lexical_declaration (variable_declarator name: (identifier) @name))) @variable)

(call_expression function: [(identifier) @call (member_expression property: (property_identifier) @call)])
(new_expression constructor: [(identifier) @call (member_expression property: (property_identifier) @call)])
(decorator [(identifier) @call (call_expression function: (identifier) @call)])

(import_statement
  (import_clause
    [(identifier) @imported
     (named_imports (import_specifier name: (identifier) @imported))
     (namespace_import (identifier) @imported)])
  source: (string (string_fragment) @module))
(import_statement . source: (string (string_fragment) @module))
(export_statement source: (string (string_fragment) @module))
