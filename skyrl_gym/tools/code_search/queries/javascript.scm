(class_declaration name: (identifier) @name (class_heritage)? @bases) @class
(variable_declarator name: (identifier) @name value: (class (class_heritage)? @bases)) @class
(assignment_expression
  left: (member_expression property: (property_identifier) @name)
  right: [(arrow_function) (function_expression)]) @function
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(field_definition property: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(call_expression function: (identifier) @require
  arguments: (arguments . (string (string_fragment) @module)) (#eq? @require "require"))
