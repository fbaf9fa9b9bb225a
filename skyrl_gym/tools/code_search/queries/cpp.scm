(class_specifier name: (_) @name (base_class_clause)? @bases body: (_)) @class
(struct_specifier name: (_) @name (base_class_clause)? @bases body: (_)) @struct
(namespace_definition name: (_) @name) @module_scope
(alias_declaration name: (type_identifier) @name) @type
(function_definition
  declarator: (function_declarator
    declarator: [(field_identifier) (qualified_identifier) (destructor_name) (operator_name)] @name)) @function
(function_definition
  declarator: [
    (pointer_declarator
      declarator: (function_declarator
        declarator: [(field_identifier) (qualified_identifier) (operator_name)] @name))
    (reference_declarator
      (function_declarator
        declarator: [(identifier) (field_identifier) (qualified_identifier) (operator_name)] @name))]) @function
(field_declaration declarator: (function_declarator declarator: (field_identifier) @name)) @declaration
(field_declaration
  declarator: [
    (pointer_declarator declarator: (function_declarator declarator: (field_identifier) @name))
    (reference_declarator (function_declarator declarator: (field_identifier) @name))]) @declaration
(concept_definition name: (identifier) @name) @type

(call_expression function: [
  (qualified_identifier name: (identifier) @call)
  (template_function name: (identifier) @call)
  (qualified_identifier name: (template_function name: (identifier) @call))])
(new_expression type: (type_identifier) @call)
(using_declaration (qualified_identifier) @module)
