(function_definition declarator: (function_declarator declarator: (identifier) @name)) @function
(function_definition
  declarator: (pointer_declarator declarator: (function_declarator declarator: (identifier) @name))) @function
(function_definition
  declarator: (pointer_declarator
    declarator: (pointer_declarator declarator: (function_declarator declarator: (identifier) @name)))) @function
(translation_unit (declaration declarator: (function_declarator declarator: (identifier) @name)) @declaration)
(translation_unit
  (declaration
    declarator: (pointer_declarator declarator: (function_declarator declarator: (identifier) @name))) @declaration)
(struct_specifier name: (type_identifier) @name body: (_)) @struct
(union_specifier name: (type_identifier) @name body: (_)) @struct
(enum_specifier name: (type_identifier) @name body: (_)) @enum
(enumerator name: (identifier) @name) @variable
(type_definition declarator: (type_identifier) @name) @type
(preproc_def name: (identifier) @name) @macro
(preproc_function_def name: (identifier) @name) @macro
(translation_unit (declaration declarator: (init_declarator declarator: (identifier) @name)) @variable)

(call_expression function: [(identifier) @call (field_expression field: (field_identifier) @call)])

(preproc_include path: (_) @module)
